// LLAMA §9.6: 64-byte objects, a heap that swings between 1 MiB and 1 GiB, and one long-lived object among
// every 10,000 allocations, until 5 MB of long-lived data exist. Then everything else is freed: what is
// still resident?
//
//   swing [PEAK_MIB] [LONG_LIVED_BYTES]
//
// Short-lived and long-lived objects come from two call sites. With SWING_ORACLE=1 and an allocator that has
// mayfly_malloc, each allocation also passes its lifetime class, the paper's "correct lifetime predictions".
#include "report.h"

#include <algorithm>
#include <sys/mman.h>

extern "C" {
void *mayfly_malloc(size_t size, int lifetime_class) __attribute__((weak));
int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
void MallocExtension_ReleaseFreeMemory() __attribute__((weak));
void mi_collect(bool) __attribute__((weak));
int malloc_trim(size_t) __attribute__((weak));
}

using namespace bench;

static const size_t object_bytes = 64;
static const uint64_t long_lived_every = 10000;

struct Object64 {
    Object64 *next;
    uint64_t number;
    uint64_t unused[5];
    uint64_t mark;
};
static_assert(sizeof(Object64) == object_bytes);

static bool oracle;
static const int class_1s = 2, class_inf = 6;

// Two functions, neither of them ending in a tail call: the allocator must see two return addresses.
__attribute__((noinline)) static Object64 *allocate_short_lived(uint64_t number) {
    auto *object = static_cast<Object64 *>(oracle ? mayfly_malloc(object_bytes, class_1s) : malloc(object_bytes));
    if (!object) fail("no memory for short-lived object %" PRIu64, number);
    object->number = number;
    object->mark = ~number;
    return object;
}

__attribute__((noinline)) static Object64 *allocate_long_lived(uint64_t number) {
    auto *object = static_cast<Object64 *>(oracle ? mayfly_malloc(object_bytes, class_inf) : malloc(object_bytes));
    if (!object) fail("no memory for long-lived object %" PRIu64, number);
    object->mark = ~number;
    object->number = number;
    return object;
}

static void verify(const Object64 *object, uint64_t number) {
    if (object->number != number || object->mark != ~number)
        fail("object %p: expected number %" PRIu64 ", found %" PRIu64, (void *)object, number, object->number);
}

// Pages of `bytes` that hold at least one of the addresses (sorted).
static size_t live_pages(const uintptr_t *address, size_t count, uintptr_t bytes) {
    size_t pages = 0;
    uintptr_t last = ~uintptr_t(0);
    for (size_t i = 0; i < count; i++)
        if (address[i] / bytes != last) {
            last = address[i] / bytes;
            pages++;
        }
    return pages;
}

// Every allocator's own function to return retained memory.
static void release_free_memory() {
    if (mallctl) mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);
    if (MallocExtension_ReleaseFreeMemory) MallocExtension_ReleaseFreeMemory();
    if (mi_collect) mi_collect(true);
    if (malloc_trim) malloc_trim(0);
}

int main(int argc, char **argv) {
    const uint64_t peak_objects = (argument(argc, argv, 1, 1024) << 20) / object_bytes;
    const uint64_t long_lived_objects = argument(argc, argv, 2, 5000000) / object_bytes;
    const uint64_t floor_objects = (1 << 20) / object_bytes;
    oracle = getenv("SWING_ORACLE") && *getenv("SWING_ORACLE") == '1';
    if (oracle && !mayfly_malloc) fail("SWING_ORACLE=1 needs an allocator with mayfly_malloc");

    Object64 *oldest = nullptr, **newest = &oldest; // short-lived, first in first out
    Object64 *long_lived = nullptr;
    uint64_t made = 0, freed = 0, kept = 0;
    auto free_oldest = [&] {
        Object64 *object = oldest;
        verify(object, freed++);
        oldest = object->next;
        free(object);
    };

    uint64_t swings = 0, start = thread_cpu_ns();
    while (kept < long_lived_objects) {
        while (made - freed + kept < peak_objects && kept < long_lived_objects) {
            Object64 *object = allocate_short_lived(made++);
            *newest = object;
            newest = &object->next;
            if (made % long_lived_every == 0) {
                Object64 *keep = allocate_long_lived(kept++);
                keep->next = long_lived;
                long_lived = keep;
            }
        }
        // Until the floor is left above the long-lived objects, which cannot be freed.
        while (made - freed > floor_objects) free_oldest();
        swings++;
    }
    while (made != freed) free_oldest();
    uint64_t spent = thread_cpu_ns() - start;

    static Report report;
    report.number("time_ms", spent / 1e6);
    report.number("pair_ns", double(spent) / (made + kept));
    report.number("swings", double(swings));
    report.number("live_bytes", double(kept * object_bytes));
    report.memory_now("at_once.");

    // A short quiet time with little work, as in an idle server: allocators that return memory by and by may
    // do so.
    for (int i = 0; i < 100; i++) {
        for (uint64_t n = 0; n < 100; n++) free(allocate_short_lived(n));
        sleep_ms(10);
    }
    report.memory_now();

    size_t bytes = kept * sizeof(uintptr_t);
    auto *address = static_cast<uintptr_t *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    size_t count = 0;
    for (Object64 *object = long_lived; object; object = object->next) {
        verify(object, kept - 1 - count);
        address[count++] = reinterpret_cast<uintptr_t>(object);
    }
    if (count != kept) fail("%zu of %" PRIu64 " long-lived objects are left", count, kept);
    std::sort(address, address + count);
    report.number("live_4k_bytes", double(live_pages(address, count, 1 << 12) << 12));
    report.number("live_2m_bytes", double(live_pages(address, count, 1 << 21) << 21));
    munmap(address, bytes);

    release_free_memory();
    report.memory_now("released.");
    report.print();
}
