/* libmemento.so: malloc and its family on Memento's two instructions (§4): objects of up to 512 bytes are the hardware's,
 * larger ones the software allocator's beneath. Without the simulator it is just an allocator. With MEMENTO=0 all are that
 * allocator's, so that the baseline has this library at the same addresses. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "objects.h"
#include "redirect.h"

enum { LARGEST_ALIGNMENT = 64 };

REDIRECTED void *memento_malloc(size_t size) { return object_allocate(size); }

REDIRECTED void memento_free(void *object) { object_free(object); }

REDIRECTED void *memento_calloc(size_t many, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(many, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    if (bytes > LARGEST_BYTES) return beneath_calloc(many, size);
    void *object = memento_malloc(bytes);
    return object ? memset(object, 0, bytes) : NULL;
}

REDIRECTED void *memento_realloc(void *object, size_t size) {
    if (!object) return memento_malloc(size);
    if (!in_region(object)) {
        if (size > LARGEST_BYTES || size == 0 || hardware_state != OPEN) return beneath_realloc(object, size);
        size_t old = beneath_malloc_usable_size(object);
        void *moved = memento_malloc(size);
        if (moved) {
            memcpy(moved, object, old < size ? old : size);
            beneath_free(object);
        }
        return moved;
    }
    if (size == 0) {
        memento_free(object);
        return NULL;
    }
    if (stays(object, size)) return object;
    void *moved = memento_malloc(size);
    if (moved) {
        memcpy(moved, object, class_bytes(object) < size ? class_bytes(object) : size);
        memento_free(object);
    }
    return moved;
}

static void *aligned_in_software(void *alignment, size_t size) { return beneath_memalign((size_t)alignment, size); }

static void *allocate_aligned(size_t alignment, size_t size) {
    size_t bytes = (size + alignment - 1) & -alignment;
    /* Objects start a line after their arena, so a multiple of the alignment is aligned up to a line. */
    if (alignment <= LARGEST_ALIGNMENT && bytes >= size && bytes > 0 && bytes <= LARGEST_BYTES)
        return hardware_allocate(bytes, aligned_in_software, (void *)alignment);
    return beneath_memalign(alignment, size);
}

static int is_power_of_two(size_t number) { return number != 0 && (number & (number - 1)) == 0; }

REDIRECTED int memento_posix_memalign(void **result, size_t alignment, size_t size) {
    if (!is_power_of_two(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
    int before = errno;
    void *object = allocate_aligned(alignment, size);
    errno = before;
    if (!object) return ENOMEM;
    *result = object;
    return 0;
}

REDIRECTED void *memento_memalign(size_t alignment, size_t size) {
    if (!is_power_of_two(alignment)) {
        errno = EINVAL;
        return NULL;
    }
    return allocate_aligned(alignment, size);
}

REDIRECTED void *memento_aligned_alloc(size_t alignment, size_t size) { return memento_memalign(alignment, size); }

REDIRECTED void *memento_valloc(size_t size) { return beneath_memalign(PAGE_BYTES, size); }

REDIRECTED void *memento_pvalloc(size_t size) {
    return beneath_memalign(PAGE_BYTES, (size + PAGE_BYTES - 1) & -(size_t)PAGE_BYTES);
}

REDIRECTED size_t memento_malloc_usable_size(void *object) {
    if (!object) return 0;
    return in_region(object) ? class_bytes(object) : beneath_malloc_usable_size(object);
}

REDIRECT_REPLACED(malloc, NULL)
REDIRECT_REPLACED(free, NULL)
REDIRECT_CALLED(calloc, NULL)
REDIRECT_CALLED(realloc, NULL)
REDIRECT_CALLED(posix_memalign, NULL)
REDIRECT_CALLED(memalign, NULL)
REDIRECT_CALLED(aligned_alloc, NULL)
REDIRECT_CALLED(valloc, NULL)
REDIRECT_CALLED(pvalloc, NULL)
REDIRECT_CALLED(malloc_usable_size, NULL)
