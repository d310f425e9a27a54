// LLAMA Table 4: what one allocation and its free cost, path by path, in nanoseconds (see pairs.h).
//
//   paths [MILLISECONDS_PER_PATH]
#include "pairs.h"

using namespace bench;

// Objects chained to one another until `bytes` are allocated, then all freed: no thread's cache is enough.
static void pairs_in_waves(size_t size, size_t bytes, uint64_t pairs) {
    for (uint64_t left = pairs; left;) {
        uint64_t wave = std::min<uint64_t>(left, bytes / size);
        void **first = nullptr;
        void ***last = &first;
        for (uint64_t n = 0; n < wave; n++) {
            void **object = static_cast<void **>(malloc(size));
            *last = object;
            last = reinterpret_cast<void ***>(object);
        }
        *last = nullptr;
        while (first) {
            void **next = static_cast<void **>(*first);
            free(first);
            first = next;
        }
        left -= wave;
    }
}

static void callocs(size_t size, uint64_t pairs) {
    for (uint64_t n = 0; n < pairs; n++) {
        char *object = static_cast<char *>(calloc(1, size));
        if (object[n % size]) fail("calloc(1, %zu) gave memory that is not zero", size);
        memset(object, 0xff, std::min<size_t>(size, 256)); // so that the next one must zero it
        keep(object);
        free(object);
    }
}

// A string or vector that grows: 16 bytes to 64 KiB, half as much again each time. A pair is one step.
static void growing(uint64_t pairs) {
    char *object = nullptr;
    size_t size = 0;
    for (uint64_t n = 0; n < pairs; n++) {
        size_t wanted = size ? size + size / 2 : 16;
        if (wanted > 64 << 10) {
            free(object);
            object = nullptr;
            wanted = 16;
        }
        size_t before = object ? size : 0;
        object = static_cast<char *>(realloc(object, wanted));
        if (before && object[before - 1] != char(before)) fail("realloc to %zu bytes lost contents", wanted);
        object[wanted - 1] = char(wanted);
        size = wanted;
    }
    free(object);
}

// One thread allocates, the other frees; one slot passes the batches.
static double freed_elsewhere(size_t size) {
    static const uint64_t batch = 256;
    static std::atomic<uint64_t> ready, taken;
    static void *object[2][batch];
    return pair_ns([size](uint64_t pairs) -> uint64_t {
        ready = taken = 0;
        uint64_t want = pairs / batch + 1;
        return run_threads(2, [&](int index) {
            for (uint64_t b = 0; b < want; b++) {
                void **slot = object[b % 2];
                if (index == 0) {
                    while (b >= taken + 2) sched_yield();
                    for (uint64_t n = 0; n < batch; n++) memset(slot[n] = malloc(size), 1, 8);
                    ready++;
                } else {
                    while (ready <= b) sched_yield();
                    for (uint64_t n = 0; n < batch; n++) free(slot[n]);
                    taken++;
                }
            }
        });
    }, false);
}

int main(int argc, char **argv) {
    uint64_t milliseconds = argument(argc, argv, 1, 150);
    round_ns = std::max<uint64_t>(milliseconds * 1000000 / rounds, 100000);
    static Report report;
    uint64_t start = now_ns();
    auto at_once = [](uint64_t pairs) { pairs_at_once(64, pairs); };
    auto waves = [](uint64_t pairs) { pairs_in_waves(64, 8 << 20, pairs); };
    auto large = [](uint64_t pairs) { pairs_in_ring(16 << 10, 16, pairs); };
    report.number("fast_64_ns", alone(at_once));
    report.number("fast_64_2_threads_ns", in_threads(2, at_once));
    report.number("fast_64_4_threads_ns", in_threads(4, at_once));
    report.number("ring_64_ns", alone([](uint64_t pairs) { pairs_in_ring(64, 1000, pairs); }));
    report.number("ring_1k_ns", alone([](uint64_t pairs) { pairs_in_ring(1024, 1000, pairs); }));
    report.number("turnover_64_ns", alone(waves));
    report.number("turnover_64_2_threads_ns", in_threads(2, waves));
    report.number("turnover_64_4_threads_ns", in_threads(4, waves));
    report.number("large_16k_ns", alone(large));
    report.number("large_16k_2_threads_ns", in_threads(2, large));
    report.number("large_16k_4_threads_ns", in_threads(4, large));
    report.number("large_64k_ns", alone([](uint64_t pairs) { pairs_in_ring(64 << 10, 16, pairs); }));
    report.number("large_1m_ns", alone([](uint64_t pairs) { pairs_in_ring(1 << 20, 16, pairs); }));
    report.number("calloc_64_ns", alone([](uint64_t pairs) { callocs(64, pairs); }));
    report.number("calloc_4k_ns", alone([](uint64_t pairs) { callocs(4096, pairs); }));
    report.number("realloc_growth_ns", alone(growing));
    report.number("freed_elsewhere_64_ns", freed_elsewhere(64));
    report.number("total_ms", (now_ns() - start) / 1e6);
    report.memory_now();
    report.print();
}
