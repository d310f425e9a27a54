// A program that allocates little takes little memory, and one with one buffer after another takes as much as
// the largest; metadata and the library's own variables are on small pages, whatever the system's setting is.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>

static long private_kib(void) {
    char line[256];
    long sum = 0, kib;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    CHECK(file, "smaps_rollup");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Private_Dirty: %ld", &kib) == 1) sum += kib;
    fclose(file);
    return sum;
}

// Whether the mapping around `address` may not have huge pages (`nh`).
static int is_on_small_pages(uintptr_t address) {
    char line[512];
    unsigned long from = 0, to = 0;
    int small = -1;
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file, "smaps");
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) from = start, to = end;
        if (!strncmp(line, "VmFlags:", 8) && from <= address && address < to) small = strstr(line, " nh") != NULL;
    }
    fclose(file);
    return small;
}

// The mapping behind the writable part of the library's file: its zeroed variables.
static uintptr_t own_variables(void) {
    char line[512], rights[5], name[256];
    unsigned long start, end, behind = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file, "maps");
    while (fgets(line, sizeof line, file)) {
        *name = 0;
        if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %255s", &start, &end, rights, name) < 3) continue;
        if (behind == start && !*name && !strncmp(rights, "rw", 2)) break;
        behind = strstr(name, "mayfly") && !strncmp(rights, "rw", 2) ? end : 0;
    }
    fclose(file);
    CHECK(behind, "no variables of the library in /proc/self/maps");
    return behind;
}

int main(void) {
    if (!dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) return 0;  // not for other heaps
    char *object = malloc(opaque_size(100));
    memset(object, 1, 100);
    CHECK(private_kib() < 1024, "%ld KiB of private memory for an object of 100 B", private_kib());
    // The first object lies on the window's first huge page; before that lies metadata of 64 regions
    // (heap/src/units/window.rs).
    const uintptr_t mib = 1 << 20;
    uintptr_t base = (uintptr_t)object & ~(2 * mib - 1);
    uintptr_t of_pages = base - 64 * 2 * mib, of_spans = of_pages - 64 * 320 * mib;
    CHECK(is_on_small_pages(of_pages) == 1, "huge pages' metadata at %#lx may be on huge pages", (unsigned long)of_pages);
    CHECK(is_on_small_pages(of_spans) == 1, "spans' metadata at %#lx may be on huge pages", (unsigned long)of_spans);
    CHECK(is_on_small_pages(own_variables()) == 1, "the library's variables may be on huge pages");
    free(object);
    long before = private_kib();
    enum { LEAST = 20000, STEP = 9000, BUFFERS = 40 };
    for (size_t i = 0; i < BUFFERS; i++) {
        char *buffer = malloc(opaque_size(LEAST + i * STEP));
        CHECK(buffer, "malloc");
        memset(opaque(buffer), 1, LEAST + i * STEP);
        free(buffer);
    }
    long grown = private_kib() - before, largest = (LEAST + BUFFERS * STEP) >> 10;
    CHECK(grown < 2 * largest, "%ld KiB more of private memory for buffers up to %ld KiB, one at a time", grown, largest);
    return 0;
}
