/* Holds objects of Memento's when it asks to be timed, and frees half of them once it is: what the units know by then must come
 * from before. The objects are marked as sim/shim marks them. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../shim/layout.h"
#include "../../shim/marks.h"

enum { CLASS = 7, ARENAS = 8, SIZE = 64, ALL = ARENAS * OBJECTS };

static char *arena(long number) { return (char *)class_start(CLASS, 0) + number * arena_bytes(CLASS); }

static char *object(long number) {
    return arena(number / OBJECTS) + HEADER_BYTES + number % OBJECTS * (long)object_bytes(CLASS);
}

static void allocate(long number) {
    char *result = object(number);
    MARK(MARK_OP_BEGIN, 0, 0);
    /* The last object of an arena is taken: the next arena is there at once (§3.1). */
    if (number % OBJECTS == OBJECTS - 1) *(volatile long *)arena(number / OBJECTS + 1) = 1;
    MARK_RESULT(MARK_OBJ_ALLOC, SIZE, result);
    *(volatile long *)result = number;
}

int main(void) {
    void *region = mmap((void *)REGION_START, REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (region == MAP_FAILED) return 1;
    MARK(MARK_MEMENTO_REGION, REGION_START, REGION_START + REGION_BYTES + REGION_EAGER);
    for (long i = 0; i < ALL / 2; i++) allocate(i);
    getpgid(0x4d4d0003);
    for (long i = ALL / 2; i < ALL * 3 / 4; i++) allocate(i);
    getpgid(0x4d4d0001);
    for (long i = ALL * 3 / 4; i < ALL; i++) allocate(i);
    for (long i = 0; i < ALL; i += 2) {
        if (*(volatile long *)object(i) != i) return 1;
        MARK(MARK_OP_BEGIN, 0, 0);
        MARK(MARK_OBJ_FREE, object(i), 0);
    }
    printf("held: %d objects\n", ALL);
    return 0;
}
