// Another call site reuses the cells that one freed: a program with two sites takes no more memory than it
// uses.
#include "check.h"

enum { COUNT = 200000, SIZE = 1000 };
static char *objects[COUNT];

int main(void) {
    for (int i = 0; i < COUNT; i++) memset(objects[i] = malloc(opaque_size(SIZE)), 1, SIZE);
    long before = resident_bytes();
    for (int i = 0; i < COUNT; i += 2) free(objects[i]);
    for (int i = 0; i < COUNT; i += 2) memset(objects[i] = opaque(malloc(opaque_size(SIZE))), 2, SIZE);
    long after = resident_bytes();
    CHECK(after < before + before / 10, "%ld KiB before, %ld KiB after half was freed and filled again", before / 1024, after / 1024);
    return 0;
}
