// Marks the region for the simulator, as python/measured.py does: by a system call for a process group that no process has.
// MAYFLY_REGION is `import`, `first` or `warm`.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline int region_is(const char *name) {
    const char *region = getenv("MAYFLY_REGION");
    return region && strcmp(region, name) == 0;
}

// All is set up: next is the first call, or the work that warms caches and HOT.
static inline void warming(void) {
    if (region_is("import")) (void)getpgid(0x4d4d0002);
    if (region_is("first") || region_is("warm")) (void)getpgid(0x4d4d0003);
    if (region_is("first")) (void)getpgid(0x4d4d0001);
}

// The first call has returned, and all is warm.
static inline void measured(void) {
    if (region_is("first")) (void)getpgid(0x4d4d0002);
    if (region_is("warm")) (void)getpgid(0x4d4d0001);
}

// So has the last one.
static inline void finished(void) {
    if (region_is("warm")) (void)getpgid(0x4d4d0002);
}
