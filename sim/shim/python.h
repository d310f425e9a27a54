/* CPython's PyMemAllocatorEx and PyMem_{Get,Set}Allocator, as its documentation describes them. */
#ifndef MEMENTO_PYTHON_H
#define MEMENTO_PYTHON_H

#include <stddef.h>

struct python_allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

enum { PYTHON_DOMAIN_MEM = 1, PYTHON_DOMAINS = 3 };

typedef void python_get(int, struct python_allocator *);
typedef void python_set(int, struct python_allocator *);

#endif
