// library
// flags: -ldl
// Another library to preload: it counts malloc and free and passes them on to the next library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static void *(*next_malloc)(size_t);
static void (*next_free)(void *);
static long counted;

void *malloc(size_t size) {
    if (!next_malloc) next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    __atomic_fetch_add(&counted, 1, __ATOMIC_RELAXED);
    return next_malloc(size);
}
void free(void *p) {
    if (!next_free) next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_free(p);
}
long counted_calls(void) { return __atomic_load_n(&counted, __ATOMIC_RELAXED); }
