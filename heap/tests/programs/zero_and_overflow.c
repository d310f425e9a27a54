// malloc(0) and friends, and sizes that cannot be had: NULL and ENOMEM, never a small object.
#include "check.h"
#include <stdint.h>

static void refused(const char *what, void *result) {
    CHECK(result == NULL, "%s returned %p", what, result);
    CHECK(errno == ENOMEM, "%s left errno %d", what, errno);
    errno = 0;
}

int main(void) {
    void *zero[100];
    for (int i = 0; i < 100; i++) {
        zero[i] = malloc(opaque_size(0));
        CHECK(zero[i] != NULL, "malloc(0) must give a unique pointer, as glibc does");
        for (int j = 0; j < i; j++) CHECK(zero[i] != zero[j], "malloc(0) gave %p twice", zero[i]);
    }
    for (int i = 0; i < 100; i++) free(zero[i]);
    void *none = calloc(opaque_size(0), 16), *none2 = calloc(16, opaque_size(0));
    CHECK(none && none2 && none != none2, "calloc of nothing gave %p and %p", none, none2);
    free(none);
    free(none2);

    size_t too_large[] = {(size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15,
                          SIZE_MAX - 4095, SIZE_MAX - MIB(2), SIZE_MAX / 2 + 2, (size_t)1 << 62, (size_t)1 << 48};
    for (size_t i = 0; i < sizeof too_large / sizeof *too_large; i++) {
        size_t size = opaque_size(too_large[i]);
        errno = 0;
        refused("malloc", malloc(size));
        refused("calloc", calloc(1, size));
        refused("calloc", calloc(size, 1));
        refused("realloc(NULL)", realloc(NULL, size));
        refused("aligned_alloc", aligned_alloc(4096, size & ~(size_t)4095 ? size & ~(size_t)4095 : size));
        refused("memalign", memalign(64, size));
        refused("valloc", valloc(size));
        refused("pvalloc", pvalloc(size));
        void *kept = (void *)0x1234;
        CHECK(posix_memalign(&kept, 64, size) == ENOMEM, "posix_memalign of %zu", size);
        CHECK(kept == (void *)0x1234, "posix_memalign must not touch its result when it fails");
        errno = 0;
        char *old = malloc(100);
        fill(old, 100, 7);
        refused("realloc", realloc(old, size));
        expect(old, 100, 7, "after a refused realloc");
        free(old);
    }

    struct { size_t count, size; } products[] = {
        {SIZE_MAX, 2}, {2, SIZE_MAX}, {SIZE_MAX / 2 + 1, 2}, {(size_t)1 << 32, (size_t)1 << 32},
        {((size_t)1 << 32) + 1, ((size_t)1 << 32) + 1}, {SIZE_MAX / 16 + 1, 16}, {SIZE_MAX / 3 + 1, 3}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        size_t count = opaque_size(products[i].count), size = opaque_size(products[i].size);
        errno = 0;
        refused("calloc (product overflows)", calloc(count, size));
        refused("reallocarray(NULL) (product overflows)", reallocarray(NULL, count, size));
        char *old = malloc(40);
        fill(old, 40, 9);
        refused("reallocarray (product overflows)", reallocarray(old, count, size));
        expect(old, 40, 9, "after a refused reallocarray");
        free(old);
    }
    char *array = reallocarray(NULL, 10, 10);
    fill(array, 100, 3);
    array = reallocarray(array, 1000, 10);
    expect(array, 100, 3, "grown by reallocarray");
    free(array);
    free(NULL);
    return 0;
}
