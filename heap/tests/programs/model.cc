// arguments: 1 2 3 4
// settings: LIFETIMES=fixed:10ms LIFETIMES=fixed:inf RECYCLE=longest DEADLINE_FACTOR=4 PAGES=base PAGES=hugetlb RETAIN=16 SPANS=lines
// refused: SPANS=round LIFETIMES=fixed:soon
// Random calls of the whole interface against a reference model: no two objects overlap, alignment and
// contents are kept, sizes suffice. `model SEED...`; each seed is 150,000 calls in one of four mixes of
// sizes.
#include "shadow.h"
#include <new>
#include <vector>

static Shadow shadow;
static uint64_t state;

static uint64_t below(uint64_t n) { return next_random(&state) % n; }

static size_t some_size(int mix) {
    uint64_t kind = below(100);
    if (mix == 0 || kind < 60) return below((uint64_t)1 << (3 + below(8)));        // small
    if (mix == 1 || kind < 85) {                                                   // at a border
        size_t border = (size_t)1 << (4 + below(mix == 3 ? 19 : 14));
        return border + border / 4 * below(4) + below(33) - 16;
    }
    return below((uint64_t)1 << (10 + below(mix == 3 ? 14 : 9)));                  // large
}

static void *some_object() {
    auto found = shadow.objects.lower_bound((uintptr_t)below((uint64_t)1 << 47));
    // Addresses are close together, so a random address nearly always finds an end of the map: walk from
    // there.
    if (found == shadow.objects.end()) --found;
    static uintptr_t last = 0;
    auto near = shadow.objects.lower_bound(last);
    for (uint64_t steps = below(20); steps && near != shadow.objects.end(); steps--) ++near;
    if (near != shadow.objects.end() && below(8)) found = near;
    last = found->first + 1;
    return (void *)found->first;
}

static void *must(void *p, size_t size) {
    CHECK(p, "no memory for %zu bytes (%zu live)", size, shadow.live_bytes);
    return p;
}
static size_t owed(size_t size) { return size >= 16 ? 16 : size >= 8 ? 8 : 1; }

static void one_call(int mix, size_t most_bytes) {
    bool full = shadow.live_bytes > most_bytes || shadow.objects.size() > 30000;
    uint64_t what = shadow.objects.empty() ? below(50) : full ? 60 + below(40) : below(100);
    size_t size = some_size(mix);
    size_t alignment = (size_t)8 << below(mix == 3 ? 18 : 10);
    if (what < 25) {
        shadow.add(must(malloc(size), size), size, owed(size));
    } else if (what < 32) {
        size_t count = 1 + below(9);
        unsigned char *p = (unsigned char *)must(calloc(count, size), size * count);
        for (size_t i = 0; i < count * size; i += 1 + i / 512) CHECK(p[i] == 0, "calloc: byte %zu of %zu is %d", i, count * size, p[i]);
        shadow.add(p, count * size, owed(count * size));
    } else if (what < 38) {
        void *p = nullptr;
        CHECK(posix_memalign(&p, alignment, size) == 0, "posix_memalign(%zu, %zu)", alignment, size);
        shadow.add(p, size, alignment);
    } else if (what < 41) {
        shadow.add(must(memalign(alignment, size), size), size, alignment);
    } else if (what < 44) {
        size = (size + alignment - 1) / alignment * alignment;
        shadow.add(must(aligned_alloc(alignment, size), size), size, alignment);
    } else if (what < 46) {
        shadow.add(must(below(2) ? valloc(size) : pvalloc(size), size), size, 4096);
    } else if (what < 50) {
        shadow.add(must(::operator new(size, std::align_val_t(alignment)), size), size, alignment);
    } else if (what < 65) {
        void *old = some_object();
        Held held = shadow.remove(old, "realloc");
        if (size == 0) size = 1;
        if (full && size > held.size) size = held.size / 2 + 1;
        void *moved = must(below(4) ? realloc(old, size) : reallocarray(old, 1, size), size);
        Shadow::expect_marked(moved, held, size < held.size ? size : held.size, "after realloc");
        shadow.add(moved, size, owed(size));
    } else {
        shadow.drop(some_object(), [](void *p, const Held &) { free(p); });
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        state = strtoull(argv[i], nullptr, 10);
        int mix = (int)(state % 4);
        printf("seed %s\n", argv[i]);
        fflush(stdout);
        for (int call = 0; call < 150000; call++) {
            // The live bytes swing between little and much, so that memory is returned and allocated again.
            size_t most = (call / 20000) % 2 ? MIB(2) : MIB(mix == 3 ? 400 : 64);
            one_call(mix, most);
        }
        shadow.drop_all([](void *p, const Held &) { free(p); });
        malloc_trim(0);
    }
    return 0;
}
