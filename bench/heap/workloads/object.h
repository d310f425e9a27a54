// An object that shows whether it was overwritten: its size and a seed at the front, and bytes that follow
// from them at the end. Checked before every free, so that overlapping objects and lost contents are found.
#pragma once

#include "report.h"

namespace bench {

struct Object {
    uint64_t size;
    uint64_t seed;
};

constexpr size_t least_object_bytes = sizeof(Object) + 8;

inline uint64_t mark_of(uint64_t size, uint64_t seed) { return (seed ^ size) * 0xD6E8FEB86659FD93u; }

inline Object *make(size_t size, uint64_t seed) {
    Object *object = static_cast<Object *>(malloc(size));
    if (!object) fail("malloc(%zu) gave no memory", size);
    if (reinterpret_cast<uintptr_t>(object) % 16) fail("malloc(%zu) gave %p, which is not 16-byte aligned", size, (void *)object);
    object->size = size;
    object->seed = seed;
    uint64_t mark = mark_of(size, seed);
    memcpy(reinterpret_cast<char *>(object) + size - 8, &mark, 8);
    return object;
}

inline void check(const Object *object) {
    uint64_t mark;
    // A size that was overwritten must not lead the check itself out of bounds.
    if (object->size < least_object_bytes || object->size > (1u << 30)) fail("object %p: its header was overwritten", (void *)object);
    memcpy(&mark, reinterpret_cast<const char *>(object) + object->size - 8, 8);
    if (mark != mark_of(object->size, object->seed))
        fail("object %p of %" PRIu64 " bytes: its contents were overwritten", (void *)object, object->size);
}

inline void destroy(Object *object) {
    check(object);
    free(object);
}

} // namespace bench
