// calloc returns zeros also in reused memory: every size to 20 KiB, then larger steps to 32 MiB. It does not
// touch memory that is fresh from the operating system.
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

// KiB that are resident.
static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1, "statm");
    fclose(file);
    return pages * 4;
}

// Tables in new memory of which a program uses a part: the unused part is not resident.
static void untouched(size_t size) {
    unsigned char *objects[4];
    long before = resident();
    for (int i = 0; i < 4; i++) CHECK((objects[i] = calloc(size / 8, 8)), "calloc(%zu)", size);
    long took = resident() - before;
    CHECK(took < 2048, "4 unused objects of %zu bytes: %ld KiB", size, took);
    for (int i = 0; i < 4; i++) zeroed(objects[i], size);
    for (int i = 0; i < 4; i++) free(objects[i]);
}

int main(void) {
    for (size_t size = MIB(3); size < MIB(16); size += MIB(4)) untouched(size);
    for (size_t size = 1; size <= KIB(20); size += size < 2048 ? 1 : 61) reuse(size, 8);
    for (size_t size = KIB(20); size <= MIB(32); size += size / 3 + 4093) reuse(size, 2);
    // Size after size at one place: a large object's memory is reused for small ones, and the other way
    // round.
    for (int round = 0; round < 20; round++)
        for (size_t size = 16; size <= MIB(8); size *= 4) reuse(size + round, 4);
    return 0;
}
