/* C++'s operators new and delete, all forms, on the instructions themselves. The C++ library's own end in malloc too, but an
 * allocator beneath (jemalloc) may define them, and would then be called past this library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "objects.h"
#include "redirect.h"

typedef void (*handler)(void);

/* std::bad_alloc, unless the program's new_handler finds memory. */
static void *out_of_memory(size_t alignment, size_t size) {
    handler (*get)(void) = dlsym(RTLD_DEFAULT, "_ZSt15get_new_handlerv");
    for (handler call; get && (call = get());) {
        call();
        void *object = alignment ? memalign(alignment, size) : malloc(size);
        if (object) return object;
    }
    void (*throw_bad_alloc)(void) = dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv");
    if (throw_bad_alloc) throw_bad_alloc();
    abort();
}

/* Large objects are the software's operator's, by a jump: it returns to the program itself. */
#define NEW(name)                                                                                                     \
    REDIRECTED void *beneath_##name(size_t size);                                                                                \
    REDIRECTED void *memento_##name(size_t size) {                                                                    \
        if (size > LARGEST_BYTES) return beneath_##name(size);                                                        \
        void *object = object_allocate(size ? size : 1);                                                              \
        return object ? object : out_of_memory(0, size);                                                              \
    }                                                                                                                 \
    REDIRECT_REPLACED(name, NULL)
#define NEW_NOTHROW(name)                                                                                             \
    REDIRECTED void *beneath_##name(size_t size, const void *nothrow);                                                           \
    REDIRECTED void *memento_##name(size_t size, const void *nothrow) {                                               \
        return size > LARGEST_BYTES ? beneath_##name(size, nothrow) : object_allocate(size ? size : 1);               \
    }                                                                                                                 \
    REDIRECT_REPLACED(name, NULL)
#define NEW_ALIGNED(name)                                                                                             \
    REDIRECTED void *memento_##name(size_t size, size_t alignment) {                                                  \
        void *object = memalign(alignment, size ? size : 1);                                                          \
        return object ? object : out_of_memory(alignment, size);                                                      \
    }                                                                                                                 \
    REDIRECT_CALLED(name, NULL)
#define NEW_ALIGNED_NOTHROW(name)                                                                                     \
    REDIRECTED void *memento_##name(size_t size, size_t alignment, const void *nothrow) {                             \
        (void)nothrow;                                                                                                \
        return memalign(alignment, size ? size : 1);                                                                  \
    }                                                                                                                 \
    REDIRECT_CALLED(name, NULL)
/* free needs none of a delete's other arguments (size, alignment, nothrow). */
#define DELETE(name)                                                                                                  \
    REDIRECTED void memento_##name(void *object) { object_free(object); }                                             \
    REDIRECT_REPLACED(name, NULL)

NEW(_Znwm)
NEW(_Znam)
NEW_NOTHROW(_ZnwmRKSt9nothrow_t)
NEW_NOTHROW(_ZnamRKSt9nothrow_t)
NEW_ALIGNED(_ZnwmSt11align_val_t)
NEW_ALIGNED(_ZnamSt11align_val_t)
NEW_ALIGNED_NOTHROW(_ZnwmSt11align_val_tRKSt9nothrow_t)
NEW_ALIGNED_NOTHROW(_ZnamSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdlPv)
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvRKSt9nothrow_t)
DELETE(_ZdaPvRKSt9nothrow_t)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)
