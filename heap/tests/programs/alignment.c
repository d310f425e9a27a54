// aligned_alloc, posix_memalign, memalign, valloc, pvalloc: all powers of two from 8 B to 64 MiB, EINVAL for
// invalid alignments, and malloc's own alignment.
#include "check.h"

static void aligned_to(void *p, size_t alignment, size_t size, const char *what) {
    CHECK(p, "%s(%zu, %zu): %s", what, alignment, size, strerror(errno));
    CHECK((uintptr_t)p % alignment == 0, "%s(%zu, %zu) gave %p", what, alignment, size, p);
    CHECK(malloc_usable_size(p) >= size, "%s(%zu, %zu): usable %zu", what, alignment, size, malloc_usable_size(p));
}

int main(void) {
    size_t sizes[] = {0, 1, 7, 8, 24, 100, 127, 128, 129, 1000, 4096, 8191, 8192, 8193, 20000, 70000, MIB(1), MIB(2), MIB(3)};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t alignment = 8; alignment <= MIB(64); alignment *= 2) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t size = sizes[i];
            void *kept[9];
            for (int copy = 0; copy < 3; copy++) {
                void *p = NULL;
                CHECK(posix_memalign(&p, alignment, size) == 0, "posix_memalign(%zu, %zu)", alignment, size);
                aligned_to(kept[3 * copy] = p, alignment, size, "posix_memalign");
                aligned_to(kept[3 * copy + 1] = memalign(alignment, size), alignment, size, "memalign");
                aligned_to(kept[3 * copy + 2] = aligned_alloc(alignment, size), alignment, size, "aligned_alloc");
            }
            size_t filled = size < KIB(64) ? size : KIB(64);
            for (int k = 0; k < 9; k++) fill(kept[k], filled, alignment + k);
            for (int k = 0; k < 9; k++) expect(kept[k], filled, alignment + k, "aligned object");
            for (int k = 8; k >= 0; k--) free(kept[k]);
        }
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *a = valloc(sizes[i]), *b = pvalloc(sizes[i]);
        aligned_to(a, page, sizes[i], "valloc");
        aligned_to(b, page, (sizes[i] + page - 1) / page * page, "pvalloc");
        free(a);
        free(b);
    }
    size_t wrong[] = {0, 1, 2, 3, 4, 12, 24, 48, 100, 4095, SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *p = (void *)0x55;
        int error = posix_memalign(&p, opaque_size(wrong[i]), 100);
        CHECK(error == EINVAL && p == (void *)0x55, "posix_memalign(%zu) gave %d, %p", wrong[i], error, p);
    }
    // A huge alignment that cannot be had is an error, not a misaligned object.
    errno = 0;
    void *far = memalign((size_t)1 << 62, 100);
    CHECK(far == NULL && (errno == ENOMEM || errno == EINVAL), "memalign(2^62) gave %p, errno %d", far, errno);

    for (size_t size = 1; size < KIB(40); size += size < 3000 ? 1 : 511) {
        void *p = malloc(size), *q = calloc(size, 1), *r = realloc(NULL, size);
        size_t owed = size >= 16 ? 16 : size >= 8 ? 8 : 1;
        aligned_to(p, owed, size, "malloc");
        aligned_to(q, owed, size, "calloc");
        aligned_to(r, owed, size, "realloc");
        free(p);
        free(q);
        free(r);
    }
    return 0;
}
