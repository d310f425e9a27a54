// Allocates and frees in one pattern, first for a second and a half so that an allocator may learn,
// then with a mark for step.c before some of its calls. `pairs PATTERN`.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <time.h>

namespace {

constexpr int MARKS = 2000, BATCH = 100, RING = 64, MANY = 1000, SITES = 16;
constexpr uint64_t WARM_NS = 1'500'000'000, LONG_NS = 200'000'000;

// Called by pointer: no stub of the linker's is between the loop and the allocator.
void *(*volatile allocate_by)(size_t) = malloc;
void (*volatile release_by)(void *) = free;

// Calls until the next mark; the calls between two marks, an odd number; and marks so far. Most calls run at
// full speed, so that an allocator's periodic work is as rare among the counted calls as it is in use.
long until = 1L << 62;
long between;
int marks;

inline __attribute__((always_inline)) void mark() {
    if (--until) return;
    until = between;
    ++marks;
    asm volatile("int3" : : : "memory");
}

inline __attribute__((always_inline)) void *allocate(size_t size) {
    auto by = allocate_by;
    mark();
    return by(size);
}

inline __attribute__((always_inline)) void release(void *object) {
    auto by = release_by;
    mark();
    by(object);
}

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// xorshift64*, the same numbers in every run.
uint64_t state = 88172645463325252u;
uint64_t random_below(uint64_t n) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return ((state * 0x2545F4914F6CDD1Du) >> 32) * n >> 32;
}

// Each is its own call site, by its return address.
template <int site> __attribute__((noinline, noclone)) void *at_site() {
    void *object = allocate(64);
    asm volatile("" : "+r"(object) : "i"(site));
    return object;
}


void *(*const volatile sites[SITES])() = {
    at_site<0>,  at_site<1>,  at_site<2>,  at_site<3>, at_site<4>,  at_site<5>,  at_site<6>,  at_site<7>,
    at_site<8>,  at_site<9>,  at_site<10>, at_site<11>, at_site<12>, at_site<13>, at_site<14>, at_site<15>,
};

// All of these call one function, which allocates for them, like a program's own wrapper of malloc.
__attribute__((noinline, noclone)) void *wrapper(size_t size) {
    void *object = allocate(size);
    asm volatile("" : "+r"(object));
    return object;
}

template <int site> __attribute__((noinline, noclone)) void *by_wrapper() {
    void *object = wrapper(64);
    asm volatile("" : "+r"(object) : "i"(site));
    return object;
}

void *(*const volatile callers[SITES])() = {
    by_wrapper<0>,  by_wrapper<1>,  by_wrapper<2>,  by_wrapper<3>, by_wrapper<4>,  by_wrapper<5>,  by_wrapper<6>,  by_wrapper<7>,
    by_wrapper<8>,  by_wrapper<9>,  by_wrapper<10>, by_wrapper<11>, by_wrapper<12>, by_wrapper<13>, by_wrapper<14>, by_wrapper<15>,
};

void *ring[MANY];

void lifo(int pairs) {
    for (int n = 0; n < pairs; ++n) {
        void *object = allocate(64);
        asm volatile("" : "+r"(object));
        release(object);
    }
}

void batch(int pairs) {
    void *objects[BATCH];
    for (int n = 0; n < pairs; n += BATCH) {
        for (int i = 0; i < BATCH; ++i) objects[i] = allocate(64);
        for (int i = 0; i < BATCH; ++i) release(objects[i]);
    }
}

template <int live> void random_sizes(int pairs) {
    for (int n = 0; n < pairs; ++n) {
        void *&place = ring[random_below(live)];
        release(place);
        place = allocate(16 + random_below(1009));
    }
}

void large(int pairs) {
    static void *oldest[16];
    for (int n = 0; n < pairs; ++n) {
        void *&place = oldest[n % 16];
        release(place);
        place = allocate(1 << 20);
    }
}

void agree(int pairs) {
    for (int n = 0; n < pairs; ++n) release(sites[random_below(SITES)]());
}

// Objects of every other site live for LONG_NS and more while the allocator learns, the rest die at once.
struct Long {
    void *object;
    uint64_t born_ns;
};
constexpr int MOST_LONG = 1 << 15;
Long queue[MOST_LONG];
unsigned queue_first, queue_end;

void differ_at(void *(*const volatile *of)(), int pairs) {
    for (int n = 0; n < pairs; ++n) {
        int site = int(random_below(SITES));
        void *object = of[site]();
        if (site % 2 == 0 || queue_end - queue_first == MOST_LONG) {
            release(object);
            continue;
        }
        queue[queue_end++ % MOST_LONG] = {object, 0};
        // Frees one for each allocated, once the first have lived long enough.
        if (queue_end - queue_first > MOST_LONG / 2) release(queue[queue_first++ % MOST_LONG].object);
    }
}

void differ(int pairs) { differ_at(sites, pairs); }

void through(int pairs) { differ_at(callers, pairs); }

// Few enough a millisecond that the queue holds LONG_NS of them.
void pause_ms() {
    timespec one{0, 1'000'000};
    nanosleep(&one, nullptr);
}

struct Pattern {
    const char *name;
    void (*run)(int);
    int pairs; // between two reads of the clock
    bool pauses;
    int between; // marks
};

const Pattern patterns[] = {
    {"lifo", lifo, 10'000, false, 997},           {"new", lifo, 10'000, false, 997},
    {"batch", batch, 10'000, false, 997},         {"random", random_sizes<RING>, 10'000, false, 997},
    {"many", random_sizes<MANY>, 10'000, false, 997},
    {"large", large, 10'000, false, 997},
    {"agree", agree, 10'000, false, 997},         {"differ", differ, 100, true, 23},
    {"through", through, 100, true, 23},
};

void round_of(const Pattern &pattern) {
    pattern.run(pattern.pairs);
    if (pattern.pauses) pause_ms();
}

} // namespace

int main(int count, char **arguments) {
    const Pattern *pattern = nullptr;
    for (const Pattern &one : patterns)
        if (count == 2 && !strcmp(arguments[1], one.name)) pattern = &one;
    if (!pattern) {
        fprintf(stderr, "pairs: lifo, new, batch, random, many, large, agree, differ or through\n");
        return 2;
    }
    if (!strcmp(pattern->name, "new")) {
        allocate_by = static_cast<void *(*)(size_t)>(::operator new);
        release_by = static_cast<void (*)(void *)>(::operator delete);
    }
    for (void *&place : ring) place = allocate(16 + random_below(1009));
    for (uint64_t end = now_ns() + WARM_NS; now_ns() < end;) round_of(*pattern);
    void *allocates = reinterpret_cast<void *>(allocate_by), *frees = reinterpret_cast<void *>(release_by);
    asm volatile("int3" : : "D"(allocates), "S"(frees) : "memory");
    for (until = between = pattern->between; marks < MARKS;) round_of(*pattern);
    return 0;
}
