// mremap of advised memory that is several mappings: all of it moves, or nothing has changed. `moves CASE` prints
// "skip: REASON" where the kernel lacks something.
// variants: started by the runner
#include "merge_test.h"

#include <stdbool.h>
#include <sys/syscall.h>

enum { PAGES = 2048, BYTES = PAGES * PAGE, MSEAL = 462 };

static unsigned char *at;

// Shared, with private zeros and private pages in the middle, read-only pages and unreadable ones.
static void prepare(void) {
    // Mappings beside it: it cannot grow where it is, and joins no other.
    unsigned char *room = mmap(NULL, BYTES + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED, "%m");
    at = room + PAGE;
    CHECK(!mprotect(at, BYTES, PROT_READ | PROT_WRITE), "%m");
    for (size_t p = 0; p < PAGES; p++) fill(at + p * PAGE, PAGE, 100 + p);
    CHECK(!mayfly_advise(at, BYTES, 0), "%s", mayfly_merge_error());
    CHECK(!madvise(at + PAGES / 2 * PAGE, 32 * PAGE, MADV_DONTNEED), "%m");
    for (size_t p = PAGES / 2; p < PAGES / 2 + 32; p++) fill(at + p * PAGE, PAGE, 100 + p);
    CHECK(!mprotect(at + 100 * PAGE, 16 * PAGE, PROT_READ), "%m");
    CHECK(!mprotect(at + 200 * PAGE, 16 * PAGE, PROT_NONE), "%m");
}

struct mapped {
    unsigned long start, end;
    char rights[8];
};

// The mappings of a range, in order; the number of all mappings.
static size_t mappings(const unsigned char *from, size_t bytes, struct mapped *found, size_t *count) {
    static char text[256 << 10];
    FILE *maps = fopen("/proc/self/maps", "r");
    setvbuf(maps, text, _IOFBF, sizeof text);
    char line[512];
    size_t all = 0;
    *count = 0;
    while (fgets(line, sizeof line, maps)) {
        struct mapped one;
        all++;
        CHECK(sscanf(line, "%lx-%lx %7s", &one.start, &one.end, one.rights) == 3, "%s", line);
        if (one.start < (uintptr_t)from + bytes && one.end > (uintptr_t)from && *count < 64) found[(*count)++] = one;
    }
    fclose(maps);
    return all;
}

static size_t all_mappings(void) {
    struct mapped none[64];
    size_t count;
    return mappings(NULL, 0, none, &count);
}

static const char *rights_of(const unsigned char *page) {
    static struct mapped found[64];
    size_t count;
    mappings(page, PAGE, found, &count);
    CHECK(count == 1, "%zu mappings at a page", count);
    return found[0].rights;
}

static void expect_all(unsigned char *there, const char *when) {
    CHECK(!strcmp(rights_of(there + 99 * PAGE), "rw-p"), "%s: %s", when, rights_of(there + 99 * PAGE));
    CHECK(!strcmp(rights_of(there + 100 * PAGE), "r--p"), "%s: %s", when, rights_of(there + 100 * PAGE));
    CHECK(!strcmp(rights_of(there + 215 * PAGE), "---p"), "%s: %s", when, rights_of(there + 215 * PAGE));
    CHECK(!strcmp(rights_of(there + 216 * PAGE), "rw-p"), "%s: %s", when, rights_of(there + 216 * PAGE));
    if (!mprotect(there + 200 * PAGE, 16 * PAGE, PROT_READ))
        for (size_t p = 200; p < 216; p++) expect(there + p * PAGE, PAGE, 100 + p, when);
    for (size_t p = 0; p < PAGES; p++)
        if (p < 200 || p >= 216) expect(there + p * PAGE, PAGE, 100 + p, when);
}

static void moves(void) {
    unsigned char *there = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(there != MAP_FAILED && there != at, "%m");
    expect_all(there, "after it grew");
    for (size_t i = BYTES; i < 2 * BYTES; i++) CHECK(!there[i], "byte %zu is not 0", i);
    struct mapped found[64];
    size_t count;
    mappings(at, BYTES, found, &count);
    CHECK(count == 0, "%zu mappings are left", count);
}

// Linux 6.17 and later move several mappings by one call, with the holes between them, to an address that the caller names.
// A move with a hole is refused on every kernel if a part of it is advised: a move that fails in the middle could not be
// undone.
static void with_a_hole(void) {
    CHECK(!munmap(at + 300 * PAGE, 4 * PAGE), "%m");
    unsigned char *to = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(to != MAP_FAILED, "%m");
    size_t before = all_mappings();
    CHECK(mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED && errno == EFAULT, "%m");
    CHECK(all_mappings() == before, "%zu mappings, before %zu", all_mappings(), before);
    // Each side by itself moves.
    unsigned char *side = mremap(at + 304 * PAGE, BYTES - 304 * PAGE, BYTES - 304 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECK(side == to, "%m");
    for (size_t p = 304; p < PAGES; p++) expect(to + (p - 304) * PAGE, PAGE, 100 + p, "moved");
    for (size_t p = 0; p < 200; p++) expect(at + p * PAGE, PAGE, 100 + p, "left");
}

// A process with as many mappings as it may have, but for `left`.
static void without_mappings(size_t left) {
    size_t most;
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    CHECK(fscanf(limit, "%zu", &most) == 1, "%m");
    fclose(limit);
    if (most > 1 << 20) {
        printf("skip: vm.max_map_count is %zu\n", most);
        exit(0);
    }
    size_t pages = most + 64, now = all_mappings();
    unsigned char *many = mmap(NULL, 2 * pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(many != MAP_FAILED, "%m");
    // Every second page becomes readable: two mappings more.
    size_t next = 0;
    while (now + 1 + 2 * next + 2 + left <= most) CHECK(!mprotect(many + (2 * next++ + 1) * PAGE, PAGE, PROT_READ), "%m");
    while (all_mappings() + left < most)
        if (mmap(NULL, PAGE, all_mappings() & 1 ? PROT_READ : PROT_EXEC, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
    size_t before = all_mappings();
    unsigned char *there = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    if (there == MAP_FAILED) {
        CHECK(errno == ENOMEM, "%m");
        CHECK(all_mappings() == before, "%zu mappings, before %zu", all_mappings(), before);
        there = at;
    }
    // So that the test itself can read and protect pages.
    munmap(many, 2 * pages * PAGE);
    expect_all(there, there == at ? "after a move without mappings" : "after a move");
    printf("%zu left: %s\n", left, there == at ? "refused" : "moved");
}

// A sealed mapping in the middle cannot move: neither do the others.
static void sealed(size_t page) {
    if (syscall(MSEAL, at + page * PAGE, 16 * PAGE, 0)) {
        CHECK(errno == ENOSYS, "%m");
        printf("skip: a kernel without mseal (Linux 6.10)\n");
        exit(0);
    }
    size_t before = all_mappings();
    unsigned char *to = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *there = mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECK(there == MAP_FAILED && errno == EPERM, "%p, %m", there);
    CHECK(all_mappings() <= before + 1, "%zu mappings, before %zu", all_mappings(), before);
    there = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(there == MAP_FAILED && errno == EPERM, "%p, %m", there);
    expect_all(at, "after a move that a seal prevents");
    // What is not sealed can go on.
    CHECK(!madvise(at + 300 * PAGE, 100 * PAGE, MADV_DONTNEED), "%m");
}

int main(int count, char **words) {
    CHECK(count > 1, "usage: moves CASE");
    prepare();
    if (!strcmp(words[1], "moves")) moves();
    else if (!strcmp(words[1], "with a hole")) with_a_hole();
    else if (!strcmp(words[1], "without mappings")) without_mappings(strtoul(words[2], NULL, 10));
    else if (!strcmp(words[1], "sealed")) sealed(1500);
    else if (!strcmp(words[1], "sealed unreadable")) sealed(200);
    else CHECK(0, "no case %s", words[1]);
    return 0;
}
