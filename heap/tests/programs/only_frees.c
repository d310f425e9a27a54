// A thread that only frees, and what others made at that, gives back what it has in hand all the same: it holds freed large
// objects in hand, and from then on only frees.
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

static long bytes_in_hand(int (*stats)(char *, size_t)) {
    static char text[16384];
    stats(text, sizeof text);
    const char *found = strstr(text, "\"heap.free.large_bytes\":");
    CHECK(found, "no large objects in hand in the statistics: %s", text);
    return atol(found + strlen("\"heap.free.large_bytes\":"));
}

int main(void) {
    int (*stats)(char *, size_t) = (int (*)(char *, size_t))dlsym(RTLD_DEFAULT, "mayfly_heap_stats");
    if (!stats) return 0;  // another allocator: nothing to ask it
    pthread_t maker;
    CHECK(pthread_barrier_init(&turn, NULL, 2) == 0, "pthread_barrier_init");
    CHECK(pthread_create(&maker, NULL, make_small, NULL) == 0, "pthread_create");
    void *large[LARGE];
    for (int i = 0; i < LARGE; i++) CHECK((large[i] = malloc(LARGE_BYTES)), "malloc(%d)", LARGE_BYTES);
    for (int i = 0; i < LARGE; i++) free(large[i]);
    long in_hand = bytes_in_hand(stats), now = in_hand;
    CHECK(in_hand >= LARGE * LARGE_BYTES, "%ld bytes in hand", in_hand);
    time_t until = time(NULL) + SECONDS;
    for (;;) {
        pthread_barrier_wait(&turn);
        for (int i = 0; i < SMALL; i++) free(small[i]);
        now = bytes_in_hand(stats);
        done = now <= in_hand / 2 || time(NULL) > until;
        pthread_barrier_wait(&turn);
        if (done) break;
    }
    pthread_join(maker, NULL);
    CHECK(now <= in_hand / 2, "%ld bytes in hand when it began to free, %ld after %d s", in_hand, now, SECONDS);
    return 0;
}
