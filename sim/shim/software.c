/* Finds the next allocator when it is first needed. The search itself may allocate: that comes from a small buffer, and is
 * never freed. */
#define _GNU_SOURCE
#include "software.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "marks.h"

static struct {
    void *(*malloc)(size_t);
    void (*free)(void *);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void *(*memalign)(size_t, size_t);
    size_t (*usable_size)(void *);
} next;

static int found, searching;
static _Alignas(16) char early[64 * 1024];
static size_t early_used;

static void *find(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) {
        dprintf(2, "libmemento: no %s beneath this library: link the program dynamically\n", name);
        _exit(127);
    }
    return function;
}

/* A malloc that was changed in place would not have to search: not charged. */
static void search(void) {
    MARK(MARK_OP_BEGIN, 0, 0);
    searching = 1;
    next.malloc = find("malloc");
    next.free = find("free");
    next.calloc = find("calloc");
    next.realloc = find("realloc");
    next.memalign = find("memalign");
    next.usable_size = find("malloc_usable_size");
    searching = 0;
    found = 1;
    MARK(MARK_OP_NONE, 0, 0);
}

static void *allocate_early(size_t size) {
    size_t start = (early_used + 15) & ~(size_t)15;
    if (size > sizeof early - start) return NULL;
    early_used = start + size;
    return early + start;
}

static int is_early(void *object) { return (char *)object >= early && (char *)object < early + sizeof early; }

/* Whether the next allocator can be asked. */
static int ready(void) {
    if (!found && !searching) search();
    return found;
}

void *software_malloc(size_t size) { return ready() ? next.malloc(size) : allocate_early(size); }

void software_free(void *object) {
    if (object && !is_early(object) && ready()) next.free(object);
}

void *software_calloc(size_t many, size_t size) {
    /* The buffer is zero and used once. */
    return ready() ? next.calloc(many, size) : allocate_early(many * size);
}

size_t software_usable_size(void *object) {
    if (is_early(object)) return (size_t)(early + early_used - (char *)object);
    return ready() ? next.usable_size(object) : 0;
}

void *software_realloc(void *object, size_t size) {
    if (!is_early(object)) return ready() ? next.realloc(object, size) : allocate_early(size);
    void *moved = software_malloc(size);
    size_t old = software_usable_size(object);
    if (moved) memcpy(moved, object, old < size ? old : size);
    return moved;
}

void *software_memalign(size_t alignment, size_t size) {
    return ready() ? next.memalign(alignment, size) : NULL;
}
