// After a load memory is returned, although no thread calls malloc any more: free blocks of mostly empty
// pages, and caches of sleeping threads. Live objects keep their contents, and the memory can be reused.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

enum { THREADS = 8, COUNT = 3000, SIZE = 4000, KEPT = 32, BUFFERS = 3 };
static char *objects[THREADS][COUNT], *buffers[THREADS][BUFFERS];
static pthread_barrier_t made, over;

static void *worker(void *argument) {
    long own = (long)argument;
    for (int i = 0; i < COUNT; i++) fill(objects[own][i] = malloc(SIZE), SIZE, (uint64_t)i);
    for (int i = 0; i < BUFFERS; i++) memset(buffers[own][i] = malloc(KIB(100)), 1, KIB(100));
    for (int i = 0; i < BUFFERS; i++) free(buffers[own][i]);
    pthread_barrier_wait(&made);
    pthread_barrier_wait(&over);  // asleep
    return NULL;
}

static long live_kib(void) {
    struct mallinfo2 now = mallinfo2();
    return (long)((now.uordblks + now.hblkhd) / 1024);
}

int main(int count, char **arguments) {
    if (!dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) return 0;  // not for other heaps
    if (count < 2) {
        setenv("MAYFLY_HEAP_DECAY", "200", 1);
        execl("/proc/self/exe", arguments[0], "again", NULL);
    }
    pthread_t threads[THREADS];
    pthread_barrier_init(&made, NULL, THREADS + 1);
    pthread_barrier_init(&over, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, worker, (void *)i) == 0, "thread");
    pthread_barrier_wait(&made);
    long full = resident_bytes() / 1024;
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < COUNT; i++)
            if (i % KEPT) free(objects[t][i]);
    const long kept = (long)THREADS * (COUNT / KEPT + 1) * 4;  // KiB, and each keeps 16
    long left = 0, live = 0;
    // No thread allocates meanwhile. The time depends on the machine, so only the runner limits it.
    for (int tenths = 1;; tenths++) {
        usleep(100000);
        left = resident_bytes() / 1024, live = live_kib();
        if (left < full / 3 && live < 2 * kept + 512) break;
        if (tenths % 100 == 0)
            fprintf(stderr, "%ld of %ld KiB are left; mallinfo2 says %ld KiB live, %ld are kept\n", left, full, live, kept);
    }
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < COUNT; i += KEPT) expect(objects[t][i], SIZE, (uint64_t)i, "after the decay");
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < COUNT; i++)
            if (i % KEPT) fill(objects[t][i] = malloc(SIZE), SIZE, (uint64_t)i);
    pthread_barrier_wait(&over);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < COUNT; i++) expect(objects[t][i], SIZE, (uint64_t)i, "used again"), free(objects[t][i]);
    return 0;
}
