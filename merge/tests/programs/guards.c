// Markers in the page table are no memory: guards (MADV_GUARD_INSTALL, Linux 6.13) and poisoned pages
// (UFFDIO_POISON, Linux 6.6) among advised pages. `guards CASE` prints "skip: REASON" where the kernel lacks them.
// variants: started by the runner
#include "merge_test.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { PAGES = 4500, FIRST = 300, MARKED = 40, INSTALL = 102, REMOVE = 103 };

static unsigned char *at;

static bool is_marked(size_t page) { return page >= FIRST && page < FIRST + MARKED; }

static void skip(const char *why) {
    printf("skip: %s\n", why);
    exit(0);
}

static unsigned char *anonymous(void) {
    unsigned char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "%m");
    return memory;
}

static void fill_all(bool with_marked) {
    for (size_t p = 0; p < PAGES; p++)
        if (with_marked || !is_marked(p)) fill(at + p * PAGE, PAGE, 100 + p);
}

// By the kernel, which fails where a read would raise a signal.
static bool can_be_read(size_t page) {
    char byte;
    struct iovec here = {&byte, 1}, there = {at + page * PAGE, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

static void expect_all(const char *when) {
    for (size_t p = 0; p < PAGES; p++) {
        if (is_marked(p))
            CHECK(!can_be_read(p), "%s: page %zu can be read", when, p);
        else
            expect(at + p * PAGE, PAGE, 100 + p, when);
    }
}

static void must_advise(void) { CHECK(!mayfly_advise(at, PAGES * PAGE, 0), "%m: %s", mayfly_merge_error()); }

// The system call without the C library, which the library interposes.
static long by_instruction(long number, long a, long b, long c) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

static void install(void) {
    if (madvise(at + FIRST * PAGE, MARKED * PAGE, INSTALL)) skip("a kernel without MADV_GUARD_INSTALL (Linux 6.13)");
}

#ifndef UFFDIO_POISON
enum { UFFD_FEATURE_POISON = 1 << 14 };
struct uffdio_poison {
    struct uffdio_range range;
    __u64 mode;
    __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

static void poison(void) {
    int file = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (file < 0) skip("userfaultfd is not permitted");
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_POISON};
    if (ioctl(file, UFFDIO_API, &api)) skip("a kernel without UFFDIO_POISON (Linux 6.6)");
    struct uffdio_register all = {.range = {(uintptr_t)at, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(!ioctl(file, UFFDIO_REGISTER, &all), "%m");
    struct uffdio_poison some = {.range = {(uintptr_t)at + FIRST * PAGE, MARKED * PAGE}};
    CHECK(!ioctl(file, UFFDIO_POISON, &some), "%m");
    CHECK(!ioctl(file, UFFDIO_UNREGISTER, &all.range), "%m");
    close(file);
}

static void expect_shared(void) {
    struct mayfly_merge_stats stats;
    CHECK(!mayfly_merge_stats(&stats, sizeof stats), "%m");
    unsigned long long shared = stats.inserted_pages + stats.merged_pages;
    CHECK(shared >= PAGES - MARKED - 16, "only %llu of %d pages are shared", shared, PAGES - MARKED);
}

int main(int count, char **words) {
    CHECK(count > 1, "usage: guards CASE");
    const char *name = words[1];
    at = anonymous();
    if (!strcmp(name, "written")) {
        fill_all(true);
        install();
    } else if (!strcmp(name, "untouched")) {
        install();
        fill_all(false);
    } else if (!strcmp(name, "poisoned")) {
        poison();
        fill_all(false);
    } else if (!strcmp(name, "after")) {
        // Installed in shared memory by a call that the library does not see.
        fill_all(true);
        must_advise();
        long result = by_instruction(SYS_madvise, (uintptr_t)at + FIRST * PAGE, MARKED * PAGE, INSTALL);
        if (result) skip("a kernel without guards in mappings of files (Linux 6.15)");
    } else if (!strcmp(name, "file")) {
        FILE *file = tmpfile();
        CHECK(!ftruncate(fileno(file), PAGES * PAGE), "%m");
        fill_all(true);
        CHECK(fwrite(at, PAGE, PAGES, file) == PAGES && !fflush(file), "%m");
        munmap(at, PAGES * PAGE);
        at = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, fileno(file), 0);
        CHECK(at != MAP_FAILED, "%m");
        if (madvise(at + FIRST * PAGE, MARKED * PAGE, INSTALL))
            skip("a kernel without guards in mappings of files (Linux 6.15)");
    } else {
        CHECK(0, "no case %s", name);
    }
    must_advise();
    expect_all("after it was advised");
    expect_shared();
    if (strcmp(name, "file"))
        for (size_t p = 0; p < PAGES; p += 7)
            if (!is_marked(p)) fill(at + p * PAGE, PAGE, 100 + p);
    must_advise();
    expect_all("after it was advised again");
    CHECK(!mayfly_unadvise(at, PAGES * PAGE), "%m: %s", mayfly_merge_error());
    expect_all("after it was made private");
    return 0;
}
