// The heap says where the objects of a lifetime class lie: with the class that they were placed with, and after their
// pages have outlived their deadlines with a longer one (LLAMA 6.4).
// flags: -ldl
#include "check.h"
#include <dlfcn.h>

struct range {
    char *start;
    size_t bytes;
};
static size_t (*placed)(int class, struct range *ranges, size_t count);
static void *(*malloc_of_class)(size_t size, int class);
static void (*set_clock)(uint64_t ns);

enum { SHORTEST = 0, FOREVER = 6, EARLY = 500, OBJECTS = 12000, MOST = 1 << 16 };
static struct range ranges[MOST];
static char *early[EARLY], *kept[OBJECTS], *brief[OBJECTS];

// Bytes of the object that lie in the ranges.
static size_t within(const char *object, size_t size, size_t count) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        const char *start = ranges[i].start, *end = start + ranges[i].bytes;
        const char *from = object > start ? object : start, *to = object + size < end ? object + size : end;
        if (to > from) found += (size_t)(to - from);
    }
    return found;
}

static size_t look(int class) {
    size_t count = placed(class, ranges, MOST);
    CHECK(count <= MOST, "%zu ranges", count);
    CHECK(placed(class, NULL, 0) == count, "as many whether they are written or not");
    for (size_t i = 0; i < count; i++) CHECK(ranges[i].bytes % 4096 == 0 && (uintptr_t)ranges[i].start % 4096 == 0, "whole pages");
    return count;
}

int main(void) {
    placed = dlsym(RTLD_DEFAULT, "mayfly_heap_placed");
    malloc_of_class = dlsym(RTLD_DEFAULT, "mayfly_malloc");
    set_clock = dlsym(RTLD_DEFAULT, "mayfly_heap_set_clock");
    if (!placed || !malloc_of_class || !set_clock) return 0;  // another heap
    const uint64_t second = 1000000000;
    set_clock(second);
    for (int i = 0; i < OBJECTS; i++) {
        kept[i] = malloc_of_class(3000, FOREVER);
        CHECK(kept[i], "malloc");
        // While the heap is small, on the same huge pages as what stays.
        if (i < EARLY) early[i] = malloc_of_class(3000, SHORTEST);
        CHECK(i >= EARLY || early[i], "malloc");
    }
    for (int i = 0; i < OBJECTS; i++) {
        brief[i] = malloc_of_class(3000, SHORTEST);
        CHECK(brief[i], "malloc");  // on pages of their own, now that the heap has many
    }
    const size_t large[] = {KIB(100), MIB(3), MIB(20)};
    char *large_kept[3], *large_brief[3];
    for (int i = 0; i < 3; i++) {
        large_kept[i] = malloc_of_class(large[i], FOREVER);
        large_brief[i] = malloc_of_class(large[i], SHORTEST);
        CHECK(large_kept[i] && large_brief[i], "malloc(%zu)", large[i]);
    }
    size_t count = look(FOREVER);
    CHECK(count > 0, "there are objects that stay");
    for (int i = 0; i < OBJECTS; i++) {
        CHECK(within(kept[i], 3000, count) == 3000, "object %d stays", i);
        CHECK(within(brief[i], 3000, count) == 0, "object %d does not", i);
    }
    for (int i = 0; i < EARLY; i++) CHECK(within(early[i], 3000, count) == 0, "object %d does not, beside one that does", i);
    for (int i = 0; i < 3; i++) {
        CHECK(within(large_kept[i], large[i], count) == large[i], "%zu bytes that stay", large[i]);
        CHECK(within(large_brief[i], large[i], count) == 0, "%zu bytes that do not", large[i]);
    }
    // A larger object with a mapping of its own keeps its class.
    large_kept[2] = realloc(large_kept[2], MIB(40));
    CHECK(large_kept[2], "realloc");
    CHECK(within(large_kept[2], MIB(40), look(FOREVER)) == MIB(40), "it grew");

    // What was freed is not there any more.
    free(large_kept[2]);
    CHECK(within(large_kept[2], MIB(40), look(FOREVER)) == 0, "it is gone");

    // Time passes, the short-lived stay: their pages come to the longest class, one deadline after the other. The heap looks
    // at the time when it is asked for memory.
    uint64_t now = second;
    for (int step = 0; step < 12; step++) {
        now += (uint64_t)3000 * second;
        set_clock(now);
        for (int i = 0; i < 2000; i++) free(opaque(malloc_of_class(20000 + (size_t)i, SHORTEST)));
    }
    count = look(FOREVER);
    size_t there = 0;
    for (int i = 0; i < OBJECTS; i++) there += within(brief[i], 3000, count) == 3000;
    CHECK(there > OBJECTS / 2, "%zu of %d objects that outlived their class are in the longest", there, OBJECTS);
    for (int i = 0; i < OBJECTS; i++) CHECK(within(kept[i], 3000, count) == 3000, "object %d still stays", i);
    return 0;
}
