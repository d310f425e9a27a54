// A map from address to object, the expected contents of the heap, in its own memory (mmap): the heap under
// test never serves its checker. Used by model.cc and fuzz_interface.cc.
#pragma once
#include "check.h"
#include <map>
#include <sys/mman.h>

// Nodes of the map: pieces of one large mapping, and a list of freed ones.
template <class T> struct Apart {
    using value_type = T;
    template <class U> Apart(const Apart<U> &) {}
    Apart() = default;
    T *allocate(size_t count) {
        static char *next = nullptr, *end = nullptr;
        if (count == 1 && freed()) {
            T *node = reinterpret_cast<T *>(freed());
            freed() = *reinterpret_cast<void **>(node);
            return node;
        }
        size_t bytes = (count * sizeof(T) + 15) & ~size_t(15);
        if (next + bytes > end) {
            next = (char *)mmap(nullptr, MIB(64) + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (next == MAP_FAILED) abort();
            end = next + MIB(64) + bytes;
        }
        T *node = reinterpret_cast<T *>(next);
        next += bytes;
        return node;
    }
    void deallocate(T *node, size_t) {
        *reinterpret_cast<void **>(node) = freed();
        freed() = node;
    }
    static void *&freed() {
        static void *list = nullptr;
        return list;
    }
    bool operator==(const Apart &) const { return true; }
    bool operator!=(const Apart &) const { return false; }
};

struct Held { size_t size, usable; uint64_t id; };

class Shadow {
  public:
    std::map<uintptr_t, Held, std::less<uintptr_t>, Apart<std::pair<const uintptr_t, Held>>> objects;
    size_t live_bytes = 0;
    uint64_t next_id = 1;

    // Adds a new object: it overlaps no other, is aligned and large enough. Fills it with its pattern.
    void add(void *object, size_t size, size_t alignment) {
        uintptr_t at = (uintptr_t)object;
        size_t usable = malloc_usable_size(object);
        CHECK(at % alignment == 0, "%p is not aligned to %zu (size %zu)", object, alignment, size);
        CHECK(usable >= size, "%p: usable %zu < size %zu", object, usable, size);
        auto after = objects.lower_bound(at);
        if (after != objects.end())
            CHECK(at + (usable ? usable : 1) <= after->first, "%p + %zu (size %zu) overlaps 0x%zx (size %zu)", object, usable, size,
                  (size_t)after->first, after->second.size);
        if (after != objects.begin()) {
            auto before = std::prev(after);
            CHECK(before->first + before->second.usable <= at, "0x%zx + %zu (size %zu) overlaps %p (size %zu)",
                  (size_t)before->first, before->second.usable, before->second.size, object, size);
        }
        objects.emplace_hint(after, at, Held{size, usable, next_id});
        fill_marked(object, usable, next_id++);
        live_bytes += usable;
    }
    // Removes an object that is about to be freed, or was reallocated: its contents must be unchanged.
    Held remove(void *object, const char *why) {
        auto found = objects.find((uintptr_t)object);
        CHECK(found != objects.end(), "%s: %p is not live", why, object);
        Held held = found->second;
        live_bytes -= held.usable;
        objects.erase(found);
        return held;
    }
    static void fill_marked(void *object, size_t size, uint64_t id) {
        if (size <= KIB(64)) return fill(object, size, id);
        for (size_t at = 0; at + 32 <= size; at += KIB(4)) fill((char *)object + at, 16, id + at);
        fill((char *)object + size - 16, 16, id + size);
    }
    static void expect_marked(const void *object, const Held &held, size_t upto, const char *why) {
        if (held.usable <= KIB(64)) return expect(object, upto < held.usable ? upto : held.usable, held.id, why);
        for (size_t at = 0; at + 16 <= upto && at + 32 <= held.usable; at += KIB(4))
            expect((const char *)object + at, 16, held.id + at, why);
        if (upto >= held.usable) expect((const char *)object + held.usable - 16, 16, held.id + held.usable, why);
    }
    // Frees through `release` after checking contents.
    template <class Release> void drop(void *object, Release release) {
        Held held = remove(object, "free");
        expect_marked(object, held, held.usable, "at free");
        release(object, held);
    }
    template <class Release> void drop_all(Release release) {
        while (!objects.empty()) drop((void *)objects.begin()->first, release);
    }
};
