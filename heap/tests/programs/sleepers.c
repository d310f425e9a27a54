// After a load, while all its threads sleep, mallinfo2 counts only live objects: once the maintenance thread
// has run, it no longer counts other threads' frees, unflushed frees and cached objects.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

enum { THREADS = 12, SLOTS = 60000, STRIPES = 64, OPERATIONS = 400000, LEFT = 16 };
static char *slots[SLOTS];
static pthread_mutex_t locks[STRIPES];
static pthread_barrier_t full, over, end;

static size_t random_size(uint64_t *random) {
    uint64_t kind = next_random(random) % 1000;
    if (kind < 700) return 1 + next_random(random) % 200;
    if (kind < 990) return 200 + next_random(random) % 3000;
    return kind < 999 ? KIB(4) + next_random(random) % KIB(60) : KIB(100) + next_random(random) % MIB(1);
}

static void replace(int slot, char *by) {
    pthread_mutex_lock(&locks[slot % STRIPES]);
    char *before = slots[slot];
    slots[slot] = by;
    pthread_mutex_unlock(&locks[slot % STRIPES]);
    free(before);
}

// Each thread frees objects of any of them; at the end one slot of LEFT is still taken.
static void *worker(void *argument) {
    uint64_t random = (uint64_t)(long)argument + 1;
    for (int i = 0; i < OPERATIONS; i++) {
        char *made = malloc(random_size(&random));
        made[0] = 1;
        replace((int)(next_random(&random) % SLOTS), made);
    }
    pthread_barrier_wait(&full);
    for (int slot = (int)(long)argument; slot < SLOTS; slot += THREADS)
        if (slot / THREADS % LEFT) replace(slot, NULL);
    pthread_barrier_wait(&over);
    pthread_barrier_wait(&end);  // asleep
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&full, NULL, THREADS);
    pthread_barrier_init(&over, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    for (int i = 0; i < STRIPES; i++) pthread_mutex_init(&locks[i], NULL);
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, worker, (void *)i) == 0, "thread");
    pthread_barrier_wait(&over);
    size_t live = 0, said = 0;
    for (int slot = 0; slot < SLOTS; slot++) live += malloc_usable_size(slots[slot]);
    if (dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) {  // not for other heaps
        int tenths = 0;
        for (; tenths < 1200; tenths++) {  // patience for slow machines: on a quiet one it is true after a second or two
            struct mallinfo2 now = mallinfo2();
            said = now.uordblks + now.hblkhd;
            if (said >= live && said <= live + live / 20) break;
            usleep(100000);
        }
        CHECK(said >= live && said <= live + live / 20, "mallinfo2 says that %zu bytes live, and it is %zu", said, live);
        printf("%zu bytes live, mallinfo2 says %zu, after %d ms\n", live, said, tenths * 100);
    }
    pthread_barrier_wait(&end);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
