// What every test program of merge uses: the heap's CHECK and random numbers, and a few questions to /proc.
#pragma once
#include "../../../heap/tests/programs/check.h"

#include "../../include/mayfly_merge.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static inline int open_files(void) {
    DIR *folder = opendir("/proc/self/fd");
    int files = -3;  // ".", ".." and the folder itself
    while (readdir(folder)) files++;
    closedir(folder);
    return files;
}

// Where kill_at begins and ends to count: arguments of prctl that mean nothing.
enum { STEPS_BEGIN = 0x6d617901, STEPS_END = 0x6d617902 };
