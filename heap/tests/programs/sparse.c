// Deleting objects at random leaves a few on nearly every span: the free memory between them is returned
// after a while, in programs with threads and without. Live objects keep their contents, and the memory can
// be reused.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

enum { COUNT = 60000, SIZE = 1000, KEPT = 10 };
static char *objects[COUNT];
static int kept[COUNT];

static void *sleeper(void *argument) {
    pthread_barrier_wait(argument);
    return NULL;
}

static void load(uint64_t *random, int allocates) {
    for (int i = 0; i < COUNT; i++)
        if (!kept[i]) fill(objects[i] = malloc(SIZE), SIZE, (uint64_t)i);
    long full = resident_bytes(), left = full;
    for (int i = 0; i < COUNT; i++)
        if (!(kept[i] = next_random(random) % KEPT == 0)) free(objects[i]);
    // The time depends on the machine, so only the runner limits it.
    for (int tenths = 1; left > full / 2; tenths++) {
        usleep(100000);
        for (int i = 0; allocates && i < 300; i++) free(opaque(malloc(opaque_size(9000))));  // little to do
        left = resident_bytes();
        if (tenths % 100 == 0) fprintf(stderr, "%ld of %ld KiB are left\n", left / 1024, full / 1024);
    }
    for (int i = 0; i < COUNT; i++)
        if (kept[i]) expect(objects[i], SIZE, (uint64_t)i, "after most was deleted");
}

int main(int count, char **arguments) {
    if (!dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) return 0;  // not for other heaps
    if (count < 2) {
        setenv("MAYFLY_HEAP_DECAY", "200", 1);
        execl("/proc/self/exe", arguments[0], "again", NULL);
    }
    uint64_t random = 3;
    load(&random, 1);
    load(&random, 1);  // into the memory that was returned
    pthread_barrier_t over;
    pthread_t thread;
    pthread_barrier_init(&over, NULL, 2);
    CHECK(pthread_create(&thread, NULL, sleeper, &over) == 0, "thread");
    load(&random, 0);
    pthread_barrier_wait(&over);
    pthread_join(thread, NULL);
    return 0;
}
