// realloc: NULL, size 0, growing and shrinking keep contents at all borders of size classes, blocks, pages and huge pages.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>

static void *resize(void *object, size_t from, size_t to, uint64_t id) {
    char *moved = realloc(object, to);
    CHECK(moved, "realloc from %zu to %zu", from, to);
    expect(moved, from < to ? from : to, id, "after realloc");
    CHECK(malloc_usable_size(moved) >= to, "usable %zu < %zu", malloc_usable_size(moved), to);
    fill(moved, to, id);
    return moved;
}

static int is_mayfly(void) { return dlsym(RTLD_DEFAULT, "mayfly_heap_stats") != NULL; }

int main(void) {
    void *fresh = realloc(NULL, 50);
    CHECK(fresh, "realloc(NULL, 50)");
    fill(fresh, 50, 1);
    void *gone = realloc(fresh, opaque_size(0));
    CHECK(gone == NULL, "realloc(p, 0) frees and gives NULL, as glibc does; got %p", gone);

    // Every border, from both sides, grown to and shrunk from every other.
    size_t sizes[400];
    int count = 0;
    for (size_t border = 8; border <= MIB(4); border *= 2)
        for (int step = 4; step < 8; step++)
            for (int side = -1; side <= 1; side++) sizes[count++] = border / 4 * step + side;
    for (int from = 0; from < count; from++) {
        for (int to = 0; to < count; to += from % 5 + (sizes[from] > KIB(64) ? 29 : 5)) {
            char *object = malloc(sizes[from]);
            CHECK(object, "malloc(%zu)", sizes[from]);
            fill(object, sizes[from], from);
            object = resize(object, sizes[from], sizes[to], from);
            free(resize(object, sizes[to], sizes[from], from));
        }
    }
    // Step by step, with neighbours that forbid growing in place.
    char *grown = malloc(1);
    fill(grown, 1, 77);
    size_t size = 1;
    void *neighbours[3000];
    int used = 0;
    while (size < MIB(48)) {
        size_t more = size + size / 19 + 1;
        grown = resize(grown, size, more, 77);
        size = more;
        neighbours[used++] = malloc(size < KIB(64) ? size : 64);
    }
    while (size > 1) {
        size_t less = size - size / 23 - 1;
        grown = resize(grown, size, less ? less : 1, 77);
        size = less ? less : 1;
    }
    free(grown);
    while (used) free(neighbours[--used]);
    // Aligned objects may lose their alignment, never their contents.
    for (size_t alignment = 8; alignment <= MIB(4); alignment *= 2) {
        void *aligned = NULL;
        CHECK(posix_memalign(&aligned, alignment, 3000) == 0, "alignment %zu", alignment);
        fill(aligned, 3000, alignment);
        aligned = resize(aligned, 3000, 100000, alignment);
        free(resize(aligned, 100000, 10, alignment));
    }
    // The smallest objects have the smallest cells: there is nothing to copy to.
    char *small = malloc(opaque_size(10));
    for (size_t size = 9; size > 0; size--) {
        char *same = realloc(small, opaque_size(size));
        CHECK(same == small || !is_mayfly(), "realloc to %zu moved", size);
        small = same;
    }
    free(small);
    return 0;
}
