// On small pages (MAYFLY_HEAP_PAGES=base) malloc_trim returns what is free between live objects, and only
// that.
#include "check.h"
#include <unistd.h>

enum { OBJECTS = 2048, SIZE = 30000 };
static unsigned char *objects[OBJECTS];

static void hold(int i) {
    for (size_t at = 0; at < SIZE; at += 997) CHECK(objects[i][at] == (unsigned char)i, "object %d, byte %zu", i, at);
}

int main(int argc, char **argv) {
    (void)argc;
    if (!getenv("MAYFLY_HEAP_PAGES")) {
        setenv("MAYFLY_HEAP_PAGES", "base", 1);
        execv("/proc/self/exe", argv);
        CHECK(0, "execv");
    }
    for (int i = 0; i < OBJECTS; i++) {
        objects[i] = malloc(SIZE);
        CHECK(objects[i], "malloc(%d)", SIZE);
        memset(objects[i], i, SIZE);
    }
    for (int round = 0; round < 3; round++) {
        long full = resident_bytes();
        for (int i = 0; i < OBJECTS; i += 2) free(objects[i]);
        malloc_trim(0);
        long half = resident_bytes();
        long least = OBJECTS / 2 * (long)SIZE * 9 / 10;
        CHECK(full - half > least, "round %d: %ld bytes resident, %ld after half was freed", round, full, half);
        CHECK(!malloc_trim(0) || resident_bytes() <= half, "round %d: again", round);
        for (int i = 1; i < OBJECTS; i += 2) hold(i);
        for (int i = 0; i < OBJECTS; i += 2) {
            objects[i] = calloc(1, SIZE);
            CHECK(objects[i], "calloc(%d)", SIZE);
            for (size_t at = 0; at < SIZE; at++) CHECK(objects[i][at] == 0, "object %d is not zero at %zu", i, at);
            memset(objects[i], i, SIZE);
        }
        for (int i = 0; i < OBJECTS; i++) hold(i);
    }
    return 0;
}
