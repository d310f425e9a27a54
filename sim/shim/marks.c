/* libmarks.so: tells the simulator when a program is in its software allocator (Table 2), and of every allocation's size and
 * lifetime (Fig. 2, Fig. 3). It wraps the next malloc in the order of symbols and, in CPython, the object allocator
 * (pymalloc), which no preloaded library could reach otherwise. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>

#include "marks.h"
#include "python.h"
#include "software.h"

#define MARKED(size, call)                                                                                            \
    ({                                                                                                                \
        MARK(MARK_MALLOC_ENTER, size, 0);                                                                             \
        void *result_ = (call);                                                                                       \
        MARK(MARK_MALLOC_LEAVE, result_, 0);                                                                          \
        result_;                                                                                                      \
    })

void *malloc(size_t size) { return MARKED(size, software_malloc(size)); }

void *calloc(size_t many, size_t size) { return MARKED(many * size, software_calloc(many, size)); }

void *memalign(size_t alignment, size_t size) { return MARKED(size, software_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **result, size_t alignment, size_t size) {
    if (alignment % sizeof(void *) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) return EINVAL;
    void *object = memalign(alignment, size);
    if (!object) return ENOMEM;
    *result = object;
    return 0;
}

void free(void *object) {
    if (!object) return;
    MARK(MARK_FREE_ENTER, object, 0);
    software_free(object);
    MARK(MARK_FREE_LEAVE, 0, 0);
}

/* A realloc is a free and an allocation, as far as lifetimes go. */
void *realloc(void *object, size_t size) {
    if (object) {
        MARK(MARK_FREE_ENTER, object, 0);
        MARK(MARK_FREE_LEAVE, 0, 0);
    }
    return MARKED(size, software_realloc(object, size));
}

static struct python_allocator beneath[PYTHON_DOMAINS];

static void *python_malloc(void *domain, size_t size) {
    struct python_allocator *its = domain;
    return MARKED(size, its->malloc(its->context, size));
}

static void *python_calloc(void *domain, size_t many, size_t size) {
    struct python_allocator *its = domain;
    return MARKED(many * size, its->calloc(its->context, many, size));
}

static void *python_realloc(void *domain, void *object, size_t size) {
    struct python_allocator *its = domain;
    if (object) {
        MARK(MARK_FREE_ENTER, object, 0);
        MARK(MARK_FREE_LEAVE, 0, 0);
    }
    return MARKED(size, its->realloc(its->context, object, size));
}

static void python_free(void *domain, void *object) {
    struct python_allocator *its = domain;
    if (!object) return;
    MARK(MARK_FREE_ENTER, object, 0);
    its->free(its->context, object);
    MARK(MARK_FREE_LEAVE, 0, 0);
}

__attribute__((constructor)) static void wrap_python(void) {
    python_get *get = (python_get *)dlsym(RTLD_DEFAULT, "PyMem_GetAllocator");
    python_set *set = (python_set *)dlsym(RTLD_DEFAULT, "PyMem_SetAllocator");
    if (!get || !set) return;
    for (int domain = PYTHON_DOMAIN_MEM; domain < PYTHON_DOMAINS; domain++) {
        get(domain, &beneath[domain]);
        struct python_allocator marked = {&beneath[domain], python_malloc, python_calloc, python_realloc, python_free};
        set(domain, &marked);
    }
}
