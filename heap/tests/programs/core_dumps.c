// A debugger's core dump has what the program uses, and no addresses that are only reserved.
#include "check.h"

// KiB of the mappings that a core dump has; -1 if the kernel does not say.
static long dumped(void) {
    FILE *file = fopen("/proc/self/smaps", "r");
    if (!file) return -1;
    char line[4096];
    long size = 0, sum = 0, known = 0;
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "Size: %ld kB", &size);
        if (strncmp(line, "VmFlags:", 8) != 0) continue;
        known = 1;
        if (!strstr(line, " dd")) sum += size;
    }
    fclose(file);
    return known ? sum : -1;
}

int main(void) {
    enum { OBJECTS = 40000, BYTES = 2000 };
    static char *objects[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) memset(objects[i] = malloc(BYTES), 1, BYTES);
    long full = dumped();
    if (full < 0) return 0;
    CHECK(full < 400 << 10, "a core dump of a program with 80 MB of objects has %ld KiB", full);
    CHECK(full > 80000000 >> 10, "a core dump lacks objects: %ld KiB", full);
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    malloc_trim(0);
    for (int i = 0; i < OBJECTS; i++) memset(objects[i] = malloc(BYTES), 1, BYTES);
    CHECK(dumped() > 80000000 >> 10, "a core dump lacks objects in memory that was used before: %ld KiB", dumped());
    return 0;
}
