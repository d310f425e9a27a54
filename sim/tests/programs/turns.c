/* Two processes with a Memento region each take turns on one core, and hand it over in the middle of what the hardware does: the
 * other one is then in such a section too. Each allocates objects of 64 bytes as sim/shim does, uses them and frees them. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shim/layout.h"
#include "../../shim/marks.h"

enum { CLASS = 7, ARENAS = 8, SIZE = 64, ALL = ARENAS * OBJECTS };

static char *arena(long number) { return (char *)class_start(CLASS, 0) + number * arena_bytes(CLASS); }

static char *object(long number) {
    return arena(number / OBJECTS) + HEADER_BYTES + number % OBJECTS * (long)object_bytes(CLASS);
}

/* The other process continues, until it waits for this one. */
static void hand_over(const int pipes[2]) {
    char byte = 0;
    if (write(pipes[1], &byte, 1) != 1 || read(pipes[0], &byte, 1) != 1) _exit(1);
}

static void allocate_and_free(const int pipes[2]) {
    void *region = mmap((void *)REGION_START, REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (region == MAP_FAILED) _exit(1);
    MARK(MARK_MEMENTO_REGION, REGION_START, REGION_START + REGION_BYTES + REGION_EAGER);
    for (long i = 0; i < ALL; i++) {
        char *result = object(i);
        MARK(MARK_OP_BEGIN, 0, 0);
        if (i % 16 == 15) hand_over(pipes);
        /* The last object of an arena is taken: the next arena is there at once (§3.1). */
        if (i % OBJECTS == OBJECTS - 1) *(volatile long *)arena(i / OBJECTS + 1) = 1;
        MARK_RESULT(MARK_OBJ_ALLOC, SIZE, result);
        *(volatile long *)result = i;
    }
    for (long i = 0; i < ALL; i++) {
        if (*(volatile long *)object(i) != i) _exit(1);
        MARK(MARK_OP_BEGIN, 0, 0);
        MARK(MARK_OBJ_FREE, object(i), 0);
    }
}

int main(void) {
    int there[2], back[2], status;
    if (pipe(there) || pipe(back)) return 1;
    if (fork() == 0) {
        allocate_and_free((int[]){there[0], back[1]});
        _exit(0);
    }
    close(there[0]), close(back[1]);
    allocate_and_free((int[]){back[0], there[1]});
    if (wait(&status) < 0 || status != 0) return 1;
    printf("turns: %d objects each\n", ALL);
    return 0;
}
