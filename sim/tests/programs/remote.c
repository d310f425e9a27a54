/* One thread allocates objects of 64 bytes as sim/shim does, another frees them: all frees are of another thread's objects. */
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#include "../../shim/layout.h"
#include "../../shim/marks.h"

enum { CLASS = 7, ARENAS = 4, SIZE = 64, ALL = ARENAS * OBJECTS };

static char *arena(long number) { return (char *)class_start(CLASS, 0) + number * arena_bytes(CLASS); }

static char *object(long number) {
    return arena(number / OBJECTS) + HEADER_BYTES + number % OBJECTS * (long)object_bytes(CLASS);
}

static void *free_all(void *unused) {
    long sum = 0;
    for (long i = 0; i < ALL; i++) {
        sum += *(volatile long *)object(i);
        MARK(MARK_OP_BEGIN, 0, 0);
        MARK(MARK_OBJ_FREE, object(i), 1);
    }
    (void)unused;
    return (void *)sum;
}

int main(void) {
    void *region = mmap((void *)REGION_START, REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (region == MAP_FAILED) return 1;
    MARK(MARK_MEMENTO_REGION, REGION_START, REGION_START + REGION_BYTES + REGION_EAGER);
    for (long i = 0; i < ALL; i++) {
        char *result = object(i);
        MARK(MARK_OP_BEGIN, 0, 0);
        /* The last object of an arena is taken: the next arena is there at once (§3.1). */
        if (i % OBJECTS == OBJECTS - 1) *(volatile long *)arena(i / OBJECTS + 1) = 1;
        MARK_RESULT(MARK_OBJ_ALLOC, SIZE, result);
        *(volatile long *)result = i;
    }
    pthread_t other;
    void *sum;
    if (pthread_create(&other, NULL, free_all, NULL) || pthread_join(other, &sum)) return 1;
    printf("remote: %d objects, sum %ld\n", ALL, (long)sum);
    return 0;
}
