/* One instance of the synthetic comparison: a region of which a part is the same in every instance and the rest is
 * private. bench/merge starts it and sends a letter a step on standard input; it answers each step with one line of
 * JSON. Exits with 1, and reports the page, when the region's contents are ever wrong.
 *
 *   region MIB PATTERN PRIVATE_PERCENT INSTANCE METHOD [LIBRARY]
 *
 * PATTERN is where the private pages are: contiguous (at the end), scattered, alternating (every second page, for any
 * PRIVATE_PERCENT). METHOD is none, engine or ksm.
 * Steps: a advise; v verify every byte; t read every page once; w write to an eighth of the pages, of both kinds, and
 * verify; x exit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "mayfly_merge.h"

enum { PAGE = 4096, WORDS = PAGE / 8, HUGE = 2 << 20 };
static const uint64_t COMMON = 42; /* the seed of the common pages */

static int (*advise)(void *, size_t, unsigned);
static int (*statistics)(struct mayfly_merge_stats *, size_t);
static const char *(*last_error)(void);

static void fail(const char *what, const char *why) {
    fprintf(stderr, "region: %s: %s\n", what, why);
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Page `index` of the region as generator `seed` makes it: no two pages equal. */
static void fill(uint64_t *page, uint64_t seed, uint64_t index) {
    uint64_t x = (seed * 0x9E3779B97F4A7C15ull) ^ ((index + 1) * 0xBF58476D1CE4E5B9ull);
    for (int i = 0; i < WORDS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        page[i] = x;
    }
}

static int is_private(const char *pattern, double percent, uint64_t index, uint64_t pages) {
    switch (pattern[0]) {
    case 'a': return index & 1;
    case 's': return (index * 0x9E3779B97F4A7C15ull >> 32) % 10000 < percent * 100;
    default: return index >= pages * (1 - percent / 100);
    }
}

struct region {
    char *start;
    uint64_t pages, seed, written;
    const char *pattern;
    double percent;
};

static uint64_t seed_of(const struct region *r, uint64_t index) {
    return is_private(r->pattern, r->percent, index, r->pages) ? r->seed : COMMON;
}

/* Written pages have a mark in their first word; their number decides which pages are written. */
static int is_written(const struct region *r, uint64_t index) { return r->written && index % 8 == 3; }

static void verify(const struct region *r) {
    static uint64_t wanted[WORDS];
    for (uint64_t i = 0; i < r->pages; i++) {
        fill(wanted, seed_of(r, i), i);
        if (is_written(r, i)) wanted[0] = ~r->seed;
        if (memcmp(wanted, r->start + i * PAGE, PAGE)) {
            fprintf(stderr, "region: instance %lu: page %lu of %lu has wrong contents\n", r->seed, i, r->pages);
            exit(1);
        }
    }
}

static void say_stats(void) {
    struct mayfly_merge_stats s = {0};
    if (statistics(&s, sizeof s)) fail("mayfly_merge_stats", last_error());
#define FIELD(name) printf(", \"" #name "\": %lu", (unsigned long)s.name)
    FIELD(pages), FIELD(merged_pages), FIELD(inserted_pages), FIELD(private_pages), FIELD(zero_pages);
    FIELD(unchanged_pages), FIELD(busy_pages), FIELD(refused_pages), FIELD(mappings);
    FIELD(total_ns), FIELD(hash_ns), FIELD(search_ns), FIELD(known_ns), FIELD(insert_ns), FIELD(map_ns);
    FIELD(freeze_ns), FIELD(compare_ns), FIELD(remap_ns);
#undef FIELD
}

static void load_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail("cannot load the library", dlerror());
    *(void **)&advise = dlsym(library, "mayfly_advise");
    *(void **)&statistics = dlsym(library, "mayfly_merge_stats");
    *(void **)&last_error = dlsym(library, "mayfly_merge_error");
    if (!advise || !statistics || !last_error) fail(path, "is not libmayfly_merge.so");
}

int main(int count, char **words) {
    if (count < 6) fail("usage", "region MIB PATTERN PRIVATE_PERCENT INSTANCE none|engine|ksm [LIBRARY]");
    size_t bytes = strtoull(words[1], NULL, 10) << 20;
    const char *method = words[5];
    struct region r = {.pages = bytes / PAGE, .pattern = words[2], .percent = atof(words[3])};
    r.seed = 1000 + strtoull(words[4], NULL, 10);
    if (!strcmp(method, "engine")) load_library(count > 6 ? words[6] : "libmayfly_merge.so");

    char *mapped = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("no memory", strerror(errno));
    r.start = (char *)(((uintptr_t)mapped + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    /* KSM splits huge pages and the engine replaces them: without them both are measured equally. */
    madvise(r.start, bytes, MADV_NOHUGEPAGE);
    uint64_t private_pages = 0;
    for (uint64_t i = 0; i < r.pages; i++) {
        fill((uint64_t *)(r.start + i * PAGE), seed_of(&r, i), i);
        private_pages += seed_of(&r, i) != COMMON;
    }
    printf("{\"private_pages\": %lu}\n", private_pages);
    fflush(stdout);

    for (int step; (step = getchar()) != EOF && step != 'x';) {
        double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        volatile char sum = 0;
        switch (step) {
        case 'a':
            if (!strcmp(method, "engine") && advise(r.start, bytes, 0)) fail("mayfly_advise", last_error());
            if (!strcmp(method, "ksm") && madvise(r.start, bytes, MADV_MERGEABLE)) fail("madvise", strerror(errno));
            break;
        case 'v': verify(&r); break;
        case 't':
            for (uint64_t i = 0; i < r.pages; i++) sum += r.start[i * PAGE];
            break;
        case 'w':
            r.written = 1;
            for (uint64_t i = 3; i < r.pages; i += 8) *(uint64_t *)(r.start + i * PAGE) = ~r.seed;
            break;
        default: continue;
        }
        wall = now(CLOCK_MONOTONIC) - wall, cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        if (step == 'w') verify(&r);
        printf("{\"wall_s\": %.6f, \"cpu_s\": %.6f", wall, cpu);
        if (step == 'a' && statistics) say_stats();
        printf("}\n");
        fflush(stdout);
    }
    return 0;
}
