/* Prints nanoseconds a page, the least of several rounds: a first write to fresh memory; fresh memory populated 16 pages at a
 * time; a private mapping of a memory file, its page table populated at once; a write to such a page.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8192, AHEAD = 16, ROUNDS = 9 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void fail(const char *call) {
    perror(call);
    exit(1);
}

static char *map(int flags, int file) {
    char *at = mmap(NULL, (size_t)PAGE * PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | flags, file, 0);
    if (at == MAP_FAILED) fail("mmap");
    /* As the heap has it: small pages. */
    madvise(at, (size_t)PAGE * PAGES, MADV_NOHUGEPAGE);
    return at;
}

static double write_all(char *at) {
    double begun = now();
    for (size_t page = 0; page < PAGES; page++) at[page * PAGE] = 1;
    return (now() - begun) / PAGES;
}

static double least(double a, double b) { return a < b ? a : b; }

int main(void) {
    int file = memfd_create("pages", 0);
    static char bytes[PAGE];
    if (file < 0) fail("memfd_create");
    for (int page = 0; page < PAGES; page++) {
        memset(bytes, page % 255 + 1, PAGE);
        if (pwrite(file, bytes, PAGE, (off_t)page * PAGE) != PAGE) fail("pwrite");
    }
    double touch = 1e9, ahead = 1e9, populate = 1e9, copy = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        char *fresh = map(MAP_ANONYMOUS, -1);
        touch = least(touch, write_all(fresh));
        munmap(fresh, (size_t)PAGE * PAGES);
        fresh = map(MAP_ANONYMOUS, -1);
        double begun = now();
        for (size_t page = 0; page < PAGES; page += AHEAD)
            if (madvise(fresh + page * PAGE, (size_t)PAGE * AHEAD, MADV_POPULATE_WRITE)) fail("MADV_POPULATE_WRITE");
        ahead = least(ahead, (now() - begun) / PAGES);
        munmap(fresh, (size_t)PAGE * PAGES);
        begun = now();
        char *stored = map(0, file);
        if (madvise(stored, (size_t)PAGE * PAGES, MADV_POPULATE_READ)) fail("MADV_POPULATE_READ");
        populate = least(populate, (now() - begun) / PAGES);
        copy = least(copy, write_all(stored));
        munmap(stored, (size_t)PAGE * PAGES);
    }
    printf("%.1f %.1f %.1f %.1f\n", touch, ahead, populate, copy);
    return 0;
}
