/* A table of floats on huge pages, read in three ways. bench/merge starts it and sends a letter a step on
 * standard input; it answers each step with one line of JSON. Every program makes the same table.
 *
 *   reads MIB [LIBRARY]
 *
 * Steps: a advise; r 200,000 random rows of 1 KiB are copied; f 2 million random floats are added; g every row is multiplied
 * with a vector; h how much is mapped by huge pages; v verify every float; x exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "mayfly_merge.h"

enum { WIDE = 256, HUGE = 2 << 20, ROWS = 200000, FLOATS = 2 << 20 };

static void fail(const char *what, const char *why) {
    fprintf(stderr, "reads: %s: %s\n", what, why);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static float value(uint64_t index) { return (float)((index * 0x9E3779B97F4A7C15ull >> 40) & 0xffff) / 65536; }

static long huge_kib(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = 0, one;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "AnonHugePages: %ld", &one) == 1 || sscanf(line, "ShmemPmdMapped: %ld", &one) == 1) kib += one;
    fclose(file);
    return kib;
}

int main(int count, char **words) {
    if (count < 2) fail("usage", "reads MIB [LIBRARY]");
    size_t bytes = strtoull(words[1], NULL, 10) << 20, floats = bytes / sizeof(float), rows = floats / WIDE;
    int (*advise)(void *, size_t, unsigned) = NULL;
    const char *(*last_error)(void) = NULL;
    if (count > 2) {
        void *library = dlopen(words[2], RTLD_NOW);
        if (!library) fail("cannot load the library", dlerror());
        *(void **)&advise = dlsym(library, "mayfly_advise");
        *(void **)&last_error = dlsym(library, "mayfly_merge_error");
        if (!advise || !last_error) fail(words[2], "is not libmayfly_merge.so");
    }
    char *mapped = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("no memory", "mmap");
    float *table = (float *)(((uintptr_t)mapped + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    madvise(table, bytes, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < floats; i++) table[i] = value(i);
    float *out = malloc((size_t)ROWS * WIDE * sizeof *out), *vector = malloc(WIDE * sizeof *vector);
    memset(out, 1, (size_t)ROWS * WIDE * sizeof *out);
    for (int i = 0; i < WIDE; i++) vector[i] = value(i * 7 + 3);
    printf("{\"huge_mib\": %ld}\n", huge_kib() / 1024);
    fflush(stdout);

    for (int step; (step = getchar()) != EOF && step != 'x';) {
        uint64_t state = 1;
        double sum = 0, begun = now();
        switch (step) {
        case 'a':
            if (!advise || advise(table, bytes, 0)) fail("mayfly_advise", last_error ? last_error() : "no library");
            break;
        case 'r':
            for (int i = 0; i < ROWS; i++)
                memcpy(out + (size_t)i * WIDE, table + next(&state) % rows * WIDE, WIDE * sizeof *out);
            sum = out[WIDE * 17];
            break;
        case 'f':
            for (int i = 0; i < FLOATS; i++) sum += table[next(&state) % floats];
            break;
        case 'g':
            for (size_t row = 0; row < rows; row++) {
                float of_row[8] = {0};
                for (int i = 0; i < WIDE; i += 8)
                    for (int j = 0; j < 8; j++) of_row[j] += table[row * WIDE + i + j] * vector[i + j];
                sum += of_row[0] + of_row[1] + of_row[2] + of_row[3] + of_row[4] + of_row[5] + of_row[6] + of_row[7];
            }
            break;
        case 'v':
            for (uint64_t i = 0; i < floats; i++)
                if (table[i] != value(i)) fail("the table", "has wrong contents");
            break;
        default: break;
        }
        double took = now() - begun;
        printf("{\"wall_s\": %.6f, \"sum\": %.6f, \"huge_mib\": %ld}\n", took, sum, huge_kib() / 1024);
        fflush(stdout);
    }
    return 0;
}
