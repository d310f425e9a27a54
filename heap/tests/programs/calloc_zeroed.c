// calloc gives zeros also where dirty memory is used again: every size to 20 KiB, then larger steps to 32 MiB.
#include "check.h"

static void zeroed(const unsigned char *p, size_t size) {
    for (size_t i = 0; i < size; i++) CHECK(p[i] == 0, "calloc(%zu): byte %zu is %#x", size, i, p[i]);
}

static void reuse(size_t size, int copies) {
    unsigned char *objects[8];
    for (int i = 0; i < copies; i++) {
        objects[i] = malloc(size);
        CHECK(objects[i], "malloc(%zu)", size);
        memset(objects[i], 0xa5, malloc_usable_size(objects[i]));
    }
    for (int i = 0; i < copies; i++) free(objects[i]);
    for (int i = 0; i < copies; i++) {
        objects[i] = i % 2 ? calloc(1, size) : calloc(size, 1);
        CHECK(objects[i], "calloc(%zu)", size);
        zeroed(objects[i], size);
        memset(objects[i], 0x5a, malloc_usable_size(objects[i]));
    }
    for (int i = 0; i < copies; i++) free(objects[i]);
}

int main(void) {
    for (size_t size = 1; size <= KIB(20); size += size < 2048 ? 1 : 61) reuse(size, 8);
    for (size_t size = KIB(20); size <= MIB(32); size += size / 3 + 4093) reuse(size, 2);
    // Size after size at one place: what was a large object's memory becomes small ones and the other way round.
    for (int round = 0; round < 20; round++)
        for (size_t size = 16; size <= MIB(8); size *= 4) reuse(size + round, 4);
    return 0;
}
