/* libmemento.so: malloc and its family on Memento's two instructions (§4): objects of up to 512 bytes are the hardware's,
 * larger ones the software allocator's beneath. Without the simulator it is just an allocator. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "objects.h"

enum { LARGEST_ALIGNMENT = 64 };

void *malloc(size_t size) { return object_allocate(size); }

void free(void *object) { object_free(object); }

void *calloc(size_t many, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(many, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    if (bytes > LARGEST_BYTES) return software_calloc(many, size);
    void *object = malloc(bytes);
    return object ? memset(object, 0, bytes) : NULL;
}

void *realloc(void *object, size_t size) {
    if (!object) return malloc(size);
    if (!in_region(object)) {
        if (size > LARGEST_BYTES || size == 0 || hardware_state != OPEN) return software_realloc(object, size);
        size_t old = software_usable_size(object);
        void *moved = malloc(size);
        if (moved) {
            memcpy(moved, object, old < size ? old : size);
            software_free(object);
        }
        return moved;
    }
    if (size == 0) {
        free(object);
        return NULL;
    }
    if (stays(object, size)) return object;
    void *moved = malloc(size);
    if (moved) {
        memcpy(moved, object, class_bytes(object) < size ? class_bytes(object) : size);
        free(object);
    }
    return moved;
}

static void *aligned_in_software(void *alignment, size_t size) { return software_memalign((size_t)alignment, size); }

static void *allocate_aligned(size_t alignment, size_t size) {
    size_t bytes = (size + alignment - 1) & -alignment;
    /* Objects start a line after their arena, so a multiple of the alignment is aligned up to a line. */
    if (alignment <= LARGEST_ALIGNMENT && bytes >= size && bytes > 0 && bytes <= LARGEST_BYTES)
        return hardware_allocate(bytes, aligned_in_software, (void *)alignment);
    return software_memalign(alignment, size);
}

static int is_power_of_two(size_t number) { return number != 0 && (number & (number - 1)) == 0; }

int posix_memalign(void **result, size_t alignment, size_t size) {
    if (!is_power_of_two(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
    int before = errno;
    void *object = allocate_aligned(alignment, size);
    errno = before;
    if (!object) return ENOMEM;
    *result = object;
    return 0;
}

void *memalign(size_t alignment, size_t size) {
    if (!is_power_of_two(alignment)) {
        errno = EINVAL;
        return NULL;
    }
    return allocate_aligned(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

void *valloc(size_t size) { return software_memalign(PAGE_BYTES, size); }

void *pvalloc(size_t size) { return software_memalign(PAGE_BYTES, (size + PAGE_BYTES - 1) & -(size_t)PAGE_BYTES); }

size_t malloc_usable_size(void *object) {
    if (!object) return 0;
    return in_region(object) ? class_bytes(object) : software_usable_size(object);
}
