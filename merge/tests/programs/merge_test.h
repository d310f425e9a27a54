// Shared by all test programs of merge: the heap's CHECK and random numbers, and a few readings of /proc.
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

// Arguments of prctl, invalid to the kernel, at which kill_at begins and ends to count.
enum { STEPS_BEGIN = 0x6d617901, STEPS_END = 0x6d617902 };
