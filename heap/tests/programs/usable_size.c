// malloc_usable_size: at least the request, all of it writable, and none of it shared with another object.
#include "check.h"

enum { OBJECTS = 3000 };
static unsigned char *objects[OBJECTS];
static size_t usable[OBJECTS];

int main(void) {
    CHECK(malloc_usable_size(NULL) == 0, "usable size of NULL is %zu", malloc_usable_size(NULL));
    uint64_t random = 5;
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < OBJECTS; i++) {
            size_t size = next_random(&random) % ((size_t)1 << (4 + next_random(&random) % 15));
            objects[i] = malloc(size);
            usable[i] = malloc_usable_size(objects[i]);
            CHECK(usable[i] >= size, "malloc(%zu): usable %zu", size, usable[i]);
            CHECK(usable[i] <= 2 * size + KIB(16), "malloc(%zu): usable %zu wastes more than half", size, usable[i]);
            fill(objects[i], usable[i], i);
        }
        for (int i = 0; i < OBJECTS; i++) {
            CHECK(malloc_usable_size(objects[i]) == usable[i], "usable size changed");
            expect(objects[i], usable[i], i, "written to its usable size");
            free(objects[i]);
        }
    }
    for (size_t size = MIB(1); size < MIB(40); size += MIB(3) + 1) {
        unsigned char *p = malloc(size);
        memset(p, 1, malloc_usable_size(p));
        free(p);
    }
    return 0;
}
