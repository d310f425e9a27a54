// A program that allocates before main (preinit_array, constructors) and after it (destructors, atexit).
#include "check.h"

static char *early[4];

static void at_preinit(void) {
    early[0] = malloc(1000);
    fill(early[0], 1000, 1);
}
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = at_preinit;

__attribute__((constructor(101))) static void first(void) {
    early[1] = calloc(10, 100);
    fill(early[1], 1000, 2);
}
__attribute__((constructor)) static void later(void) {
    early[2] = realloc(NULL, 1000);
    early[2] = realloc(early[2], MIB(3));
    fill(early[2], MIB(3), 3);
}
static void at_exit(void) {
    expect(early[1], 1000, 2, "at exit");
    free(early[1]);
    early[3] = malloc(MIB(4));
    fill(early[3], MIB(4), 4);
}
__attribute__((destructor)) static void last(void) {
    expect(early[3], MIB(4), 4, "in a destructor");
    free(early[3]);
    free(early[2]);
    for (size_t size = 1; size < 100000; size += 1111) free(malloc(size));
}

int main(void) {
    expect(early[0], 1000, 1, "made by preinit_array");
    expect(early[1], 1000, 2, "made by the first constructor");
    expect(early[2], MIB(3), 3, "made by a constructor");
    free(early[0]);
    atexit(at_exit);
    return 0;
}
