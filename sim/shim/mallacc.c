/* libmallacc.so: the idealised Mallacc of §6.7 over the software allocator beneath. Mallacc caches, in hardware, the size
 * class of a request and the head of its free list; here both always hit and take no time: a malloc that finds an object
 * in its list, and a free that puts one there, are not charged by the simulator (marks OP_BEGIN .. OP_NONE). Filling
 * an empty list and emptying a long one is software, as in Mallacc, and is charged. C and C++ only. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "marks.h"
#include "software.h"

enum { STEP_BYTES = 16, LARGEST_BYTES = 1024, CLASSES = LARGEST_BYTES / STEP_BYTES + 1, BATCH = 32, LONGEST = 256 };

struct object {
    struct object *next;
};

static __thread struct {
    struct object *head;
    unsigned length;
} lists[CLASSES] __attribute__((tls_model("initial-exec")));

static inline unsigned class_of(size_t size) { return (size + STEP_BYTES - 1) / STEP_BYTES; }

static void push(unsigned class, struct object *object) {
    object->next = lists[class].head;
    lists[class].head = object;
    lists[class].length++;
}

static struct object *pop(unsigned class) {
    struct object *object = lists[class].head;
    if (object) {
        lists[class].head = object->next;
        lists[class].length--;
    }
    return object;
}

/* A batch from the software allocator; one of it is returned. */
static void *fill(unsigned class) {
    for (int i = 0; i < BATCH - 1; i++) {
        struct object *object = software_malloc(class * STEP_BYTES);
        if (!object) break;
        push(class, object);
    }
    return software_malloc(class * STEP_BYTES);
}

void *malloc(size_t size) {
    if (size > LARGEST_BYTES) return software_malloc(size);
    MARK(MARK_OP_BEGIN, 0, 0);
    unsigned class = class_of(size ? size : 1);
    void *object = pop(class);
    MARK(MARK_OP_NONE, 0, 0);
    return object ? object : fill(class);
}

void free(void *freed) {
    if (!freed) return;
    MARK(MARK_OP_BEGIN, 0, 0);
    /* The class whose requests the object is large enough for. */
    size_t size = software_usable_size(freed);
    unsigned class = size / STEP_BYTES;
    int kept = class > 0 && class < CLASSES && size % STEP_BYTES == 0 && lists[class].length < LONGEST;
    if (kept) push(class, freed);
    MARK(MARK_OP_NONE, 0, 0);
    if (kept) return;
    software_free(freed);
    if (class == 0 || class >= CLASSES) return;
    for (int i = 0; i < BATCH && lists[class].head; i++) software_free(pop(class));
}

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

void *realloc(void *object, size_t size) { return software_realloc(object, size); }

void *memalign(size_t alignment, size_t size) { return software_memalign(alignment, size); }
