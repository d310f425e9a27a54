// A thread whose cache holds freed large objects, and which from then on only frees objects of other threads,
// still releases its cache.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

enum { LARGE = 4, LARGE_BYTES = 30000, SMALL = 512, SECONDS = 60 };
static void *small[SMALL];
static pthread_barrier_t turn;
static int done;

static void *make_small(void *unused) {
    for (;;) {
        for (int i = 0; i < SMALL; i++) CHECK((small[i] = malloc(64)), "malloc(64)");
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);  // they are freed
        if (done) return unused;
    }
}

static long cached_bytes(int (*stats)(char *, size_t)) {
    static char text[16384];
    stats(text, sizeof text);
    const char *found = strstr(text, "\"heap.free.large_bytes\":");
    CHECK(found, "no cached large objects in the statistics: %s", text);
    return atol(found + strlen("\"heap.free.large_bytes\":"));
}

int main(void) {
    int (*stats)(char *, size_t) = (int (*)(char *, size_t))dlsym(RTLD_DEFAULT, "mayfly_heap_stats");
    if (!stats) return 0;  // not for other heaps
    pthread_t maker;
    CHECK(pthread_barrier_init(&turn, NULL, 2) == 0, "pthread_barrier_init");
    CHECK(pthread_create(&maker, NULL, make_small, NULL) == 0, "pthread_create");
    void *large[LARGE];
    for (int i = 0; i < LARGE; i++) CHECK((large[i] = malloc(LARGE_BYTES)), "malloc(%d)", LARGE_BYTES);
    for (int i = 0; i < LARGE; i++) free(large[i]);
    long cached = cached_bytes(stats), now = cached;
    CHECK(cached >= LARGE * LARGE_BYTES, "%ld cached bytes", cached);
    time_t until = time(NULL) + SECONDS;
    for (;;) {
        pthread_barrier_wait(&turn);
        for (int i = 0; i < SMALL; i++) free(small[i]);
        now = cached_bytes(stats);
        done = now <= cached / 2 || time(NULL) > until;
        pthread_barrier_wait(&turn);
        if (done) break;
    }
    pthread_join(maker, NULL);
    CHECK(now <= cached / 2, "%ld cached bytes when it began to free, %ld after %d s", cached, now, SECONDS);
    return 0;
}
