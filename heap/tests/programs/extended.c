// flags: -ldl
// jemalloc's extended interface, as programs use it that are linked with libjemalloc: objects go both ways
// between it and malloc's; every flag; the names of mallctl, by name and by numbers. The functions are looked
// up in the process, and the program also passes with jemalloc itself preloaded.
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#define LG_ALIGN(lg) (lg)
#define ZERO 0x40
#define TCACHE(cache) (((cache) + 2) << 8)
#define TCACHE_NONE TCACHE(-1)
#define ARENA(arena) (((arena) + 1) << 20)
#define ALL_ARENAS 4096

static void *(*mallocx_)(size_t, int);
static void *(*rallocx_)(void *, size_t, int);
static size_t (*xallocx_)(void *, size_t, size_t, int);
static size_t (*sallocx_)(const void *, int);
static void (*dallocx_)(void *, int);
static void (*sdallocx_)(void *, size_t, int);
static size_t (*nallocx_)(size_t, int);
static int (*mallctl_)(const char *, void *, size_t *, void *, size_t);
static int (*nametomib)(const char *, size_t *, size_t *);
static int (*bymib)(const size_t *, size_t, void *, size_t *, void *, size_t);
static void (*stats_print)(void (*)(void *, const char *), void *, const char *);

static void *look_up(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    CHECK(found, "%s is missing", name);
    return found;
}

#define READ(type, name)                                                                \
    ({                                                                                  \
        type value_ = (type){0};                                                        \
        size_t length_ = sizeof value_;                                                 \
        int error_ = mallctl_(name, &value_, &length_, NULL, 0);                        \
        CHECK(error_ == 0, "%s: error %d", name, error_);                               \
        CHECK(length_ == sizeof value_, "%s: %zu bytes", name, length_);                \
        value_;                                                                         \
    })

static int act(const char *name) { return mallctl_(name, NULL, NULL, NULL, 0); }

static uint64_t epoch(void) {
    uint64_t now = 1;
    size_t length = sizeof now;
    CHECK(mallctl_("epoch", &now, &length, &now, sizeof now) == 0, "epoch");
    return now;
}

static bool is_zero(const unsigned char *bytes, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (bytes[i]) return false;
    return true;
}

static const size_t SIZES[] = {1, 8, 16, 24, 100, 128, 1000, 4096, 5000, 8192, 8193, 20000, 70000, MIB(1), MIB(3), MIB(20)};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void test_both_ways(void) {
    for (size_t i = 0; i < COUNT(SIZES); i++) {
        size_t size = SIZES[i];
        char *p = mallocx_(size, 0);
        fill(p, size, i);
        CHECK(malloc_usable_size(p) >= size && sallocx_(p, 0) == malloc_usable_size(p), "size %zu", size);
        free(p);
        p = malloc(size);
        dallocx_(p, 0);
        p = malloc(size);
        sdallocx_(p, size, 0);
        p = malloc(size);
        fill(p, size, i);
        p = rallocx_(p, size * 2, 0);
        expect(p, size, i, "malloc, rallocx");
        p = realloc(p, size * 3);
        expect(p, size, i, "rallocx, realloc");
        dallocx_(p, TCACHE_NONE);
        p = calloc(1, size);
        p = rallocx_(p, size + 1, ZERO);
        CHECK(is_zero((unsigned char *)p, 0, malloc_usable_size(p)), "calloc, rallocx of %zu", size);
        free(p);
        p = aligned_alloc(64, 64 * size);
        dallocx_(p, LG_ALIGN(6));
    }
}

static void test_flags(void) {
    for (size_t i = 0; i < COUNT(SIZES); i++)
        for (int lg = 0; lg <= 22; lg += SIZES[i] > KIB(100) ? 11 : 1)
            for (int more = 0; more < 4; more++) {
                int flags = LG_ALIGN(lg) | (more & 1 ? ZERO : 0) | (more & 2 ? TCACHE_NONE | ARENA(0) : 0);
                size_t size = SIZES[i], promised = nallocx_(size, flags);
                CHECK(promised >= size, "nallocx(%zu, %#x) gave %zu", size, flags, promised);
                char *dirty = malloc(size);
                memset(dirty, 0xaa, size);
                free(dirty);
                unsigned char *p = mallocx_(size, flags);
                CHECK(p && (uintptr_t)p % ((size_t)1 << lg) == 0, "mallocx(%zu, %#x) gave %p", size, flags, (void *)p);
                size_t usable = sallocx_(p, flags);
                CHECK(usable >= promised, "%zu usable, nallocx(%zu, %#x) gave %zu", usable, size, flags, promised);
                if (flags & ZERO) CHECK(is_zero(p, 0, usable), "mallocx(%zu, %#x) is not zero", size, flags);
                memset(p, flags & ZERO ? 0 : 0xbb, usable);
                p[0] = 7;
                unsigned char *q = rallocx_(p, size * 2 + 9, flags);
                CHECK(q && (uintptr_t)q % ((size_t)1 << lg) == 0, "rallocx(%zu, %#x) gave %p", size, flags, (void *)q);
                CHECK(q[0] == 7, "rallocx(%zu, %#x) lost the contents", size, flags);
                if (flags & ZERO) CHECK(is_zero(q, 1, sallocx_(q, flags)), "rallocx(%zu, %#x) is not zero", size, flags);
                q = rallocx_(q, size, flags);
                CHECK(q && q[0] == 7 && (uintptr_t)q % ((size_t)1 << lg) == 0, "rallocx back to %zu, %#x", size, flags);
                if (more & 2)
                    sdallocx_(q, size, flags);
                else
                    dallocx_(q, flags);
            }
    CHECK(nallocx_(SIZE_MAX - 5, 0) == 0, "nallocx of what no object can have");
    CHECK(!mallocx_(opaque_size((size_t)1 << 60), 0), "mallocx of 2^60 bytes");
    char *p = malloc(100);
    fill(p, 100, 3);
    CHECK(!rallocx_(p, opaque_size((size_t)1 << 60), 0), "rallocx to 2^60 bytes");
    expect(p, 100, 3, "after a rallocx that failed");
    free(p);
}

static void test_in_place(void) {
    for (size_t i = 0; i < COUNT(SIZES); i++) {
        size_t size = SIZES[i];
        unsigned char *p = mallocx_(size, ZERO);
        size_t before = sallocx_(p, 0);
        fill(p, size, i);
        size_t now = xallocx_(p, size, 0, ZERO);
        CHECK(now == sallocx_(p, 0) && now >= size, "xallocx to %zu, as before, gave %zu", size, now);
        now = xallocx_(p, size * 2, size, ZERO);
        CHECK(now == sallocx_(p, 0) && now >= size, "xallocx of %zu to twice gave %zu", size, now);
        expect(p, size, i, "xallocx");
        if (now > before) CHECK(is_zero(p, before, now), "xallocx of %zu: the new part is not zero", size);
        now = xallocx_(p, size, 0, 0);
        CHECK(now >= size, "xallocx back to %zu gave %zu", size, now);
        expect(p, size, i, "xallocx back");
        free(p);
    }
}

static void test_errors(void) {
    size_t value = 0, length = sizeof value;
    unsigned small = 0;
    const char *absent[] = {"", "no", "stats", "stats.no", "stats.allocated.no", "arenas.bin.x.size", "prof.active", "opt.prof",
                            "stats.arenas.0.bins", "experimental.no"};
    for (size_t i = 0; i < COUNT(absent); i++) {
        int error = mallctl_(absent[i], &value, &length, NULL, 0);
        // A jemalloc with profiling has the names of profiling.
        CHECK(error == ENOENT || strstr(absent[i], "prof"), "%s: error %d", absent[i], error);
    }
    CHECK(mallctl_("stats.allocated", NULL, NULL, &value, sizeof value) == EPERM, "a statistic was written");
    length = sizeof small;
    CHECK(mallctl_("stats.allocated", &small, &length, NULL, 0) == EINVAL, "a statistic in 4 bytes");
    CHECK(mallctl_("epoch", NULL, NULL, &small, sizeof small) == EINVAL, "an epoch of 4 bytes");
    length = sizeof value;
    CHECK(mallctl_("thread.tcache.flush", &value, &length, NULL, 0) == EPERM, "a flush was read");
    CHECK(mallctl_("tcache.flush", NULL, NULL, NULL, 0) != 0, "a flush of no cache");
}

static void test_names(void) {
    CHECK(READ(const char *, "version")[0] == '5', "version %s", READ(const char *, "version"));
    CHECK(READ(size_t, "arenas.page") == 4096 && READ(size_t, "arenas.quantum") == 16, "arenas.page");
    CHECK(READ(bool, "config.stats"), "config.stats");
    const char *words[] = {"opt.dss", "opt.percpu_arena", "opt.metadata_thp", "opt.thp", "opt.junk", "opt.stats_print_opts"};
    for (size_t i = 0; i < COUNT(words); i++) CHECK(READ(const char *, words[i]), "%s", words[i]);
    const char *truths[] = {"opt.abort", "opt.retain", "opt.zero", "opt.tcache", "opt.stats_print", "opt.background_thread"};
    for (size_t i = 0; i < COUNT(truths); i++) READ(bool, truths[i]);
    READ(unsigned, "opt.narenas"), READ(ssize_t, "opt.dirty_decay_ms"), READ(ssize_t, "opt.muzzy_decay_ms");

    unsigned bins = READ(unsigned, "arenas.nbins");
    char name[64];
    for (unsigned i = 0; i < bins; i++) {
        snprintf(name, sizeof name, "arenas.bin.%u.size", i);
        size_t size = READ(size_t, name);
        CHECK(nallocx_(size, 0) == size && nallocx_(size - 1, 0) == size, "bin %u of %zu bytes", i, size);
        snprintf(name, sizeof name, "arenas.bin.%u.nregs", i);
        CHECK(READ(uint32_t, name) > 0, "%s", name);
    }
    snprintf(name, sizeof name, "arenas.bin.%u.size", bins + 1);
    CHECK(act(name) == ENOENT, "%s exists", name);

    unsigned arenas = READ(unsigned, "arenas.narenas"), made = READ(unsigned, "arenas.create");
    CHECK(made == arenas && READ(unsigned, "arenas.narenas") == arenas + 1, "arenas.create gave %u of %u", made, arenas);
    snprintf(name, sizeof name, "arena.%u.initialized", made);
    READ(bool, name);
    unsigned cache = READ(unsigned, "tcache.create");
    char *p = mallocx_(1000, ARENA(made) | TCACHE(cache));
    fill(p, 1000, 5);
    p = rallocx_(p, 3000, ARENA(made) | TCACHE(cache));
    expect(p, 1000, 5, "in an arena");
    sdallocx_(p, 3000, TCACHE(cache));
    CHECK(mallctl_("tcache.flush", NULL, NULL, &cache, sizeof cache) == 0, "tcache.flush");
    CHECK(mallctl_("tcache.destroy", NULL, NULL, &cache, sizeof cache) == 0, "tcache.destroy");
    CHECK(act("thread.tcache.flush") == 0, "thread.tcache.flush");
    snprintf(name, sizeof name, "arena.%d.decay", ALL_ARENAS);
    CHECK(act(name) == 0, "%s", name);

    bool on = READ(bool, "background_thread"), off = false, before = !on;
    size_t length = sizeof before;
    CHECK(mallctl_("background_thread", &before, &length, &off, sizeof off) == 0 && before == on, "background_thread");
    CHECK(!READ(bool, "background_thread"), "background_thread is off");
    ssize_t ms = 5000, was = READ(ssize_t, "arenas.dirty_decay_ms");
    CHECK(mallctl_("arenas.dirty_decay_ms", NULL, NULL, &ms, sizeof ms) == 0, "arenas.dirty_decay_ms");
    CHECK(READ(ssize_t, "arenas.dirty_decay_ms") == ms, "arenas.dirty_decay_ms");
    ms = -7;
    CHECK(mallctl_("arenas.dirty_decay_ms", NULL, NULL, &ms, sizeof ms) == EFAULT, "arenas.dirty_decay_ms of -7");
    mallctl_("arenas.dirty_decay_ms", NULL, NULL, &was, sizeof was);
}

static void test_numbers(void) {
    size_t numbers[8], count = COUNT(numbers), length = sizeof(size_t), size;
    if (READ(unsigned, "arenas.nbins") == 0) return;  // the layout by lines has no bins
    CHECK(nametomib("arenas.bin.0.size", numbers, &count) == 0 && count == 4, "%zu numbers", count);
    for (size_t bin = 0; bin < READ(unsigned, "arenas.nbins"); bin++) {
        char name[64];
        snprintf(name, sizeof name, "arenas.bin.%zu.size", bin);
        numbers[2] = bin;
        CHECK(bymib(numbers, count, &size, &length, NULL, 0) == 0 && size == READ(size_t, name), "bin %zu", bin);
    }
    count = COUNT(numbers);
    CHECK(nametomib("stats.arenas.0.bins.0.curregs", numbers, &count) == 0 && count == 6, "%zu numbers", count);
    numbers[2] = ALL_ARENAS;
    CHECK(bymib(numbers, count, &size, &length, NULL, 0) == 0, "bins of all arenas");
    count = COUNT(numbers);
    CHECK(nametomib("arenas.bin.0", numbers, &count) == 0 && count == 3, "the first parts of a name");
    CHECK(bymib(numbers, count, &size, &length, NULL, 0) == ENOENT, "they are no control");
    CHECK(nametomib("arenas.no", numbers, &count) == ENOENT, "unknown");
}

static void collect(void *text, const char *piece) { strncat(text, piece, KIB(1024) - strlen(text) - 1); }

static void test_statistics(void) {
    uint64_t first = epoch();
    size_t before = READ(size_t, "stats.allocated");
    enum { OBJECTS = 4000, BYTES = 3000 };
    static char *objects[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) memset(objects[i] = malloc(BYTES), 1, BYTES);
    char *large = malloc(MIB(40));
    memset(large, 1, MIB(40));
    CHECK(READ(size_t, "stats.allocated") == before, "statistics change before the epoch does");
    CHECK(epoch() > first, "the epoch does not advance");
    size_t with = READ(size_t, "stats.allocated"), all = (size_t)OBJECTS * BYTES + MIB(40);
    CHECK(with >= before + all && with < before + all * 5 / 4, "allocated %zu, then %zu", before, with);
    CHECK(READ(size_t, "stats.active") >= with, "active %zu", READ(size_t, "stats.active"));
    CHECK(READ(size_t, "stats.resident") >= READ(size_t, "stats.active"), "resident %zu", READ(size_t, "stats.resident"));
    CHECK((size_t)resident_bytes() > READ(size_t, "stats.resident") / 2, "resident %zu", READ(size_t, "stats.resident"));
    CHECK(READ(size_t, "stats.mapped") >= READ(size_t, "stats.active"), "mapped %zu", READ(size_t, "stats.mapped"));
    CHECK(READ(size_t, "stats.metadata") > 0, "metadata");
    READ(size_t, "stats.retained");
    CHECK(READ(size_t, "stats.arenas.4096.pactive") * 4096 <= READ(size_t, "stats.mapped"), "pactive");
    size_t small = READ(size_t, "stats.arenas.4096.small.allocated"), big = READ(size_t, "stats.arenas.4096.large.allocated");
    CHECK(small >= (size_t)OBJECTS * BYTES && big >= MIB(40), "small %zu, large %zu", small, big);
    size_t in_bins = 0;
    for (unsigned i = 0; i < READ(unsigned, "arenas.nbins"); i++) {
        char name[64];
        snprintf(name, sizeof name, "arenas.bin.%u.size", i);
        size_t size = READ(size_t, name);
        snprintf(name, sizeof name, "stats.arenas.4096.bins.%u.curregs", i);
        in_bins += READ(size_t, name) * size;
    }
    CHECK(in_bins == small || READ(unsigned, "arenas.nbins") == 0, "%zu bytes in bins, %zu small", in_bins, small);

    free(large);
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    char name[64];
    snprintf(name, sizeof name, "arena.%d.purge", ALL_ARENAS);
    CHECK(act(name) == 0, "%s", name);
    epoch();
    size_t after = READ(size_t, "stats.allocated");
    CHECK(after < before + all / 8, "allocated %zu before and %zu after", before, after);
    CHECK((size_t)resident_bytes() < all / 2, "%ld bytes are resident after a purge", resident_bytes());

    char *text = calloc(1, KIB(1024));
    stats_print(collect, text, NULL);
    CHECK(strstr(text, "allocated") && strstr(text, "End "), "malloc_stats_print: %s", text);
    *text = 0;
    stats_print(collect, text, "J");
    CHECK(strstr(text, "\"allocated\":"), "malloc_stats_print in JSON: %s", text);
    free(text);
}

static void *count_bytes(void *unused) {
    uint64_t *allocated = READ(uint64_t *, "thread.allocatedp"), *freed = READ(uint64_t *, "thread.deallocatedp");
    uint64_t allocated_before = READ(uint64_t, "thread.allocated"), freed_before = READ(uint64_t, "thread.deallocated");
    CHECK(*allocated == allocated_before && *freed == freed_before, "the addresses show other numbers");
    size_t sum = 0;
    for (int round = 0; round < 50; round++)
        for (size_t i = 0; i < COUNT(SIZES); i++) {
            char *p = opaque(round % 2 ? malloc(SIZES[i]) : mallocx_(SIZES[i], 0));
            sum += malloc_usable_size(p);
            dallocx_(p, 0);
        }
    CHECK(READ(uint64_t, "thread.allocated") == allocated_before + sum, "%zu bytes allocated, counted %llu", sum,
          (unsigned long long)(READ(uint64_t, "thread.allocated") - allocated_before));
    CHECK(*freed == freed_before + sum, "%zu bytes freed, counted %llu", sum, (unsigned long long)(*freed - freed_before));
    return unused;
}

int main(void) {
    mallocx_ = look_up("mallocx"), rallocx_ = look_up("rallocx"), xallocx_ = look_up("xallocx");
    sallocx_ = look_up("sallocx"), dallocx_ = look_up("dallocx"), sdallocx_ = look_up("sdallocx");
    nallocx_ = look_up("nallocx"), mallctl_ = look_up("mallctl"), nametomib = look_up("mallctlnametomib");
    bymib = look_up("mallctlbymib"), stats_print = look_up("malloc_stats_print");
    test_both_ways();
    test_flags();
    test_in_place();
    test_errors();
    test_names();
    test_numbers();
    test_statistics();
    pthread_t thread;
    for (int i = 0; i < 2 && act("thread.allocated") == 0; i++) {  // the layout by lines counts no bytes
        CHECK(pthread_create(&thread, NULL, count_bytes, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
    }
    return 0;
}
