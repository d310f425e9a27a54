/* CPython's object allocator and Memento's, in one program: "the simulator replaces calls to memory allocation and free
 * functions with the corresponding ISA extensions" (§5). CPython's own functions, in its obmalloc.o, are called software_*
 * here (see build); those of their names are the jumps of redirect.h, which lead to these, or to what is below. Objects of
 * more than 512 bytes are always CPython's. */
#include <stddef.h>
#include <string.h>

#include "../hardware.h"
#include "../redirect.h"

/* A program's own constructors come after libc has noted what libraries do at the end; the arenas must be there until then. */
__attribute__((section(".preinit_array"), used)) static void (*const start_first)(int, char **, char **) = redirect_start;

#define DOMAIN(name)                                                                                                  \
    void *software_##name##_Malloc(size_t);                                                                           \
    void *software_##name##_Calloc(size_t, size_t);                                                                   \
    void *software_##name##_Realloc(void *, size_t);                                                                  \
    void software_##name##_Free(void *);                                                                              \
    REDIRECTED void *beneath_##name##_Malloc(size_t);                                                                 \
    REDIRECTED void *beneath_##name##_Calloc(size_t, size_t);                                                         \
    REDIRECTED void *beneath_##name##_Realloc(void *, size_t);                                                        \
    REDIRECTED void beneath_##name##_Free(void *);                                                                    \
                                                                                                                      \
    static void *name##_otherwise(void *ignored, size_t size) {                                                       \
        (void)ignored;                                                                                                \
        return beneath_##name##_Malloc(size);                                                                         \
    }                                                                                                                 \
                                                                                                                      \
    REDIRECTED void *memento_##name##_Malloc(size_t size) {                                                           \
        return size <= LARGEST_BYTES ? hardware_allocate(size, name##_otherwise, NULL) : beneath_##name##_Malloc(size);\
    }                                                                                                                 \
                                                                                                                      \
    REDIRECTED void memento_##name##_Free(void *object) {                                                             \
        if (in_region(object)) hardware_free(object);                                                                 \
        else beneath_##name##_Free(object);                                                                           \
    }                                                                                                                 \
                                                                                                                      \
    REDIRECTED void *memento_##name##_Calloc(size_t many, size_t size) {                                              \
        size_t bytes;                                                                                                 \
        if (__builtin_mul_overflow(many, size, &bytes) || bytes > LARGEST_BYTES)                                      \
            return beneath_##name##_Calloc(many, size);                                                               \
        void *object = memento_##name##_Malloc(bytes);                                                                \
        return object ? memset(object, 0, bytes) : NULL;                                                              \
    }                                                                                                                 \
                                                                                                                      \
    /* Objects that are large stay CPython's, even if they become small. */                                           \
    REDIRECTED void *memento_##name##_Realloc(void *object, size_t size) {                                            \
        if (!object) return memento_##name##_Malloc(size);                                                            \
        if (!in_region(object)) return beneath_##name##_Realloc(object, size);                                        \
        if (stays(object, size)) return object;                                                                       \
        void *moved = memento_##name##_Malloc(size);                                                                  \
        if (moved) {                                                                                                  \
            memcpy(moved, object, class_bytes(object) < size ? class_bytes(object) : size);                           \
            memento_##name##_Free(object);                                                                            \
        }                                                                                                             \
        return moved;                                                                                                 \
    }                                                                                                                 \
                                                                                                                      \
    REDIRECT_REPLACED(name##_Malloc, software_##name##_Malloc)                                                        \
    REDIRECT_REPLACED(name##_Free, software_##name##_Free)                                                            \
    REDIRECT_CALLED(name##_Calloc, software_##name##_Calloc)                                                          \
    REDIRECT_CALLED(name##_Realloc, software_##name##_Realloc)

DOMAIN(PyObject)
DOMAIN(PyMem)
