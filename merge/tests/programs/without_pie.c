// A program that is linked without PIE and takes the addresses of the interposed functions, as Node.js does: their
// one address is then in the program's own PLT. `without_pie` ends once the library has redirected the calls.
// variants: started by the runner, compiled with -no-pie -fno-pic
#include "merge_test.h"

#include <malloc.h>

// In code, so that the linker gives the program a PLT entry for each.
static void *(*volatile resize)(void *, size_t);
static void *(*volatile allocate)(size_t);
static void (*volatile release)(void *);
static int (*volatile drop)(void *, size_t, int);
static void *(*volatile move)(void *, size_t, size_t, int, ...);
static size_t (*volatile room)(void *);

int main(void) {
    enum { PAGES = 1024, BYTES = PAGES * PAGE };
    resize = realloc, allocate = malloc, release = free, drop = madvise, move = mremap, room = malloc_usable_size;
    unsigned char *block = allocate(BYTES);
    fill(block, BYTES, 7);
    unsigned char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(at, BYTES, 8);
    uintptr_t first = ((uintptr_t)block + PAGE - 1) / PAGE * PAGE;
    CHECK(!mayfly_advise(at, BYTES, 0), "%s", mayfly_merge_error());
    CHECK(!mayfly_advise((void *)first, BYTES - PAGE, 0), "%s", mayfly_merge_error());
    char *small = realloc(malloc(100), 200);
    small = resize(small, 9000);
    CHECK(room(small) >= 9000, "%zu", room(small));
    release(small);
    // Blocks and mappings of shared pages, by the functions' names and by their addresses.
    block = resize(block, 2 * BYTES);
    expect(block, BYTES, 7, "after realloc");
    free(block);
    CHECK(!drop(at, BYTES / 2, MADV_DONTNEED), "%m");
    for (size_t i = 0; i < BYTES / 2; i++) CHECK(!at[i], "byte %zu is not 0", i);
    fill(at, BYTES, 9);
    CHECK(!mayfly_advise(at, BYTES, 0), "%s", mayfly_merge_error());
    at = move(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED, "%m");
    expect(at, BYTES, 9, "after mremap");
    for (size_t i = BYTES; i < 2 * BYTES; i++) CHECK(!at[i], "byte %zu is not 0", i);
    struct mayfly_merge_stats stats;
    CHECK(!mayfly_merge_stats(&stats, sizeof stats), "%m");
    CHECK(stats.inserted_pages + stats.merged_pages > PAGES, "%llu pages are shared",
          (unsigned long long)(stats.inserted_pages + stats.merged_pages));
    return 0;
}
