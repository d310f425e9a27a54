// Memory that was freed does not count against RLIMIT_DATA when it is needed for something else; and what the
// system's heuristic refuses is NULL, as with the C library.
#include "check.h"

#include <sys/resource.h>

static long number_of(const char *path, const char *name) {
    char line[256], format[64];
    long number = -1, found;
    FILE *file = fopen(path, "r");
    snprintf(format, sizeof format, "%s%%ld", name);
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, format, &found) == 1) number = found;
    if (file) fclose(file);
    return number;
}

static size_t fill_up(char **all, size_t most, size_t bytes) {
    size_t count = 0;
    while (count < most && (all[count] = malloc(bytes))) memset(all[count++], 1, bytes);
    return count;
}

int main(void) {
    if (number_of("/proc/sys/vm/overcommit_memory", "") == 0) {
        size_t kib = number_of("/proc/meminfo", "MemTotal: ") + number_of("/proc/meminfo", "SwapTotal: ");
        CHECK(!malloc(opaque_size(kib * 1024 * 2)), "twice the machine's %zu KiB were given", kib);
        void *half = malloc(opaque_size(kib * 1024 / 2));
        CHECK(half, "half of the machine's %zu KiB were refused", kib);
        free(half);
    }

    struct rlimit limit = {MIB(300), MIB(300)};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
    static char *all[10000];
    for (int round = 0; round < 3; round++) {
        size_t count = fill_up(all, 10000, 100000);
        CHECK(count > 1500, "only %zu objects of 100,000 bytes below 300 MiB", count);
        for (size_t i = 0; i < count; i++) free(all[i]);
        char *large = malloc(MIB(50));
        CHECK(large, "round %d: 50 MiB were refused after %zu objects of 100,000 bytes were freed", round, count);
        memset(large, 1, MIB(50));
        free(large);
    }
    return 0;
}
