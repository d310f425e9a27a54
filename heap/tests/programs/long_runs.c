// A server that runs for years: the clock continues beyond 2^32 ms, deadlines still pass, and pages are
// returned.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>

enum { COUNT = 4000, SIZE = 3000, BRIEF = 0 };
static char *objects[COUNT];
static int (*statistics)(char *, size_t);

static long value(const char *key) {
    static char report[8192], name[64];
    statistics(report, sizeof report);
    snprintf(name, sizeof name, "\"heap.%s\":", key);
    char *at = strstr(report, name);
    CHECK(at, "no %s in %s", key, report);
    return atol(at + strlen(name));
}

int main(void) {
    void (*set_clock)(uint64_t) = dlsym(RTLD_DEFAULT, "mayfly_heap_set_clock");
    void *(*malloc_of_class)(size_t, int) = dlsym(RTLD_DEFAULT, "mayfly_malloc");
    statistics = dlsym(RTLD_DEFAULT, "mayfly_heap_stats");
    if (!set_clock || !malloc_of_class || !statistics) return 0;  // another heap
    const uint64_t ms = 1000000, year = 365ull * 86400 * 1000;
    set_clock(2 * year * ms);
    CHECK(value("clock_ms") == (long)(2 * year), "the clock shows %ld", value("clock_ms"));
    for (int i = 0; i < COUNT; i++) objects[i] = malloc_of_class(SIZE, BRIEF);
    long expired = value("deadlines_expired");
    set_clock((2 * year + 1000) * ms);
    // Maintenance needs slow paths: calls with new sizes.
    for (int i = 0; i < 2000; i++) free(opaque(malloc(opaque_size(9000 + 16 * i))));
    CHECK(value("deadlines_expired") > expired, "no deadline passed within a second: %ld", expired);
    for (int i = 0; i < COUNT; i++) free(objects[i]);
    malloc_trim(0);
    CHECK(value("huge_pages.live") <= 1, "%ld pages are left", value("huge_pages.live"));
    return 0;
}
