/* CPython's object allocator, replaced in place: "the simulator replaces calls to memory allocation and free functions with
 * the corresponding ISA extensions" (§5). These take the place of the functions of the same names in CPython's own
 * obmalloc.o, whose are called software_* here (see build): a caller gets to the instruction by one direct call, as it gets
 * to pymalloc in the baseline. Objects of more than 512 bytes go on to CPython's. */
#include <stddef.h>
#include <string.h>

#include "../hardware.h"

/* A program's own constructors come after libc has noted what libraries do at the end; the arenas must be there until then. */
__attribute__((section(".preinit_array"), used)) static void (*const close_last)(void) = hardware_close_at_exit;

#define DOMAIN(name)                                                                                                  \
    void *software_##name##_Malloc(size_t);                                                                           \
    void *software_##name##_Calloc(size_t, size_t);                                                                   \
    void *software_##name##_Realloc(void *, size_t);                                                                  \
    void software_##name##_Free(void *);                                                                              \
                                                                                                                      \
    static void *name##_otherwise(void *ignored, size_t size) {                                                       \
        (void)ignored;                                                                                                \
        return software_##name##_Malloc(size);                                                                        \
    }                                                                                                                 \
                                                                                                                      \
    void *name##_Malloc(size_t size) {                                                                                \
        return size <= LARGEST_BYTES ? hardware_allocate(size, name##_otherwise, NULL)                                \
                                     : software_##name##_Malloc(size);                                                \
    }                                                                                                                 \
                                                                                                                      \
    void name##_Free(void *object) {                                                                                  \
        if (in_region(object)) hardware_free(object);                                                                 \
        else software_##name##_Free(object);                                                                          \
    }                                                                                                                 \
                                                                                                                      \
    void *name##_Calloc(size_t many, size_t size) {                                                                   \
        size_t bytes;                                                                                                 \
        if (__builtin_mul_overflow(many, size, &bytes) || bytes > LARGEST_BYTES)                                      \
            return software_##name##_Calloc(many, size);                                                              \
        void *object = name##_Malloc(bytes);                                                                          \
        return object ? memset(object, 0, bytes) : NULL;                                                              \
    }                                                                                                                 \
                                                                                                                      \
    /* Objects that are large stay CPython's, even if they become small. */                                           \
    void *name##_Realloc(void *object, size_t size) {                                                                 \
        if (!object) return name##_Malloc(size);                                                                      \
        if (!in_region(object)) return software_##name##_Realloc(object, size);                                       \
        if (stays(object, size)) return object;                                                                       \
        void *moved = name##_Malloc(size);                                                                            \
        if (moved) {                                                                                                  \
            memcpy(moved, object, class_bytes(object) < size ? class_bytes(object) : size);                           \
            name##_Free(object);                                                                                      \
        }                                                                                                             \
        return moved;                                                                                                 \
    }

DOMAIN(PyObject)
DOMAIN(PyMem)
