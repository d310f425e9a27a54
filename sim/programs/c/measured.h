// Tells the simulator from where on a program is in its steady state (§5), as python/measured.py does: by a system call for a
// process group that nobody has.
#define _GNU_SOURCE
#include <unistd.h>

// From here on every instruction is timed, so that caches and HOT get warm.
static inline void warming(void) { (void)getpgid(0x4d4d0003); }

// From here on everything counts.
static inline void measured(void) { (void)getpgid(0x4d4d0001); }
