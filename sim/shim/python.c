/* CPython's object allocator on Memento's instructions (§5: its allocation functions are replaced by them). Programs reach
 * pymalloc by one indirect call; here that call leads to a comparison and an instruction. Objects of more than 512 bytes
 * go where they went before. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "hardware.h"
#include "python.h"
#include "redirect.h"

static struct python_allocator beneath[PYTHON_DOMAINS];

static void *in_software(void *domain, size_t size) {
    struct python_allocator *its = domain;
    return its->malloc(its->context, size);
}

static void *python_malloc(void *domain, size_t size) {
    return size <= LARGEST_BYTES ? hardware_allocate(size, in_software, domain) : in_software(domain, size);
}

static void *python_calloc(void *domain, size_t many, size_t size) {
    struct python_allocator *its = domain;
    size_t bytes;
    if (__builtin_mul_overflow(many, size, &bytes) || bytes > LARGEST_BYTES)
        return its->calloc(its->context, many, size);
    void *object = python_malloc(domain, bytes);
    return object ? memset(object, 0, bytes) : NULL;
}

static void python_free(void *domain, void *object) {
    if (in_region(object)) {
        hardware_free(object);
        return;
    }
    struct python_allocator *its = domain;
    its->free(its->context, object);
}

/* Objects that are large stay the allocator's beneath, even if they become small. */
static void *python_realloc(void *domain, void *object, size_t size) {
    struct python_allocator *its = domain;
    if (!object) return python_malloc(domain, size);
    if (!in_region(object)) return its->realloc(its->context, object, size);
    if (stays(object, size)) return object;
    void *moved = python_malloc(domain, size);
    if (moved) {
        memcpy(moved, object, class_bytes(object) < size ? class_bytes(object) : size);
        python_free(domain, object);
    }
    return moved;
}

__attribute__((constructor)) static void hook_python(void) {
    python_get *get = (python_get *)dlsym(RTLD_DEFAULT, "PyMem_GetAllocator");
    python_set *set = (python_set *)dlsym(RTLD_DEFAULT, "PyMem_SetAllocator");
    if (!get || !set || !redirect_is_memento()) return;
    for (int domain = PYTHON_DOMAIN_MEM; domain < PYTHON_DOMAINS; domain++) {
        get(domain, &beneath[domain]);
        struct python_allocator ours = {&beneath[domain], python_malloc, python_calloc, python_realloc, python_free};
        set(domain, &ours);
    }
}
