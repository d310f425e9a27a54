// What one allocation and its free cost for objects of 512 B to 16 KiB, in nanoseconds (see pairs.h): freed at
// once, in a ring, at random, and by another thread. Of two threads each is timed by its own processor time,
// only while it allocates or frees.
//
//   sizes [MILLISECONDS_PER_PATH]
#include "pairs.h"

using namespace bench;

static const size_t sizes[] = {512, 1024, 2048, 4096, 16384};
static const uint64_t most_passed = 1024;

// `kept` objects alive, of which any is freed next, of `least` to `most` bytes.
static void pairs_at_random(size_t least, size_t most, uint64_t kept, uint64_t pairs) {
    static void *slots[most_kept];
    Random random(1);
    for (uint64_t n = 0; n < pairs; n++) {
        void *&slot = slots[random.below(kept)];
        free(slot);
        size_t size = least + random.below(most - least + 1);
        slot = malloc(size);
        static_cast<char *>(slot)[0] = static_cast<char *>(slot)[size - 1] = char(n);
    }
    for (uint64_t n = 0; n < kept; n++) {
        free(slots[n]);
        slots[n] = nullptr;
    }
}

// One thread allocates a batch of objects while the other frees the batch before, in any order.
static double freed_by_another(size_t size, uint64_t passed) {
    static std::atomic<uint64_t> ready, taken;
    static void *object[2][most_passed];
    static uint64_t spent[2];
    return pair_ns([=](uint64_t pairs) -> uint64_t {
        ready = taken = spent[0] = spent[1] = 0;
        uint64_t want = pairs / passed + 1;
        run_threads(2, [=](int index) {
            Random random(1);
            for (uint64_t b = 0; b < want; b++) {
                void **slot = object[b % 2];
                while (index == 0 ? b >= taken + 2 : ready <= b) sched_yield();
                uint64_t start = thread_cpu_ns();
                if (index == 0)
                    for (uint64_t n = 0; n < passed; n++) memset(slot[n] = malloc(size), 1, 8);
                else
                    for (uint64_t n = passed; n > 0; n--) {
                        std::swap(slot[random.below(n)], slot[n - 1]);
                        free(slot[n - 1]);
                    }
                spent[index] += thread_cpu_ns() - start;
                (index == 0 ? ready : taken)++;
            }
        });
        return (spent[0] + spent[1]) * pairs / (want * passed);
    }, false);
}

int main(int argc, char **argv) {
    uint64_t milliseconds = argument(argc, argv, 1, 150);
    round_ns = std::max<uint64_t>(milliseconds * 1000000 / rounds, 100000);
    static Report report;
    static char name[40];
    uint64_t start = now_ns();
    auto number = [&](const char *path, size_t size, double ns) {
        snprintf(name, sizeof name, "%s_%zu_ns", path, size);
        report.number(name, ns);
    };
    for (size_t size : sizes) {
        uint64_t kept = std::min<uint64_t>(1000, (4 << 20) / size), passed = std::min<uint64_t>(most_passed, (1 << 20) / size);
        number("once", size, alone([=](uint64_t pairs) { pairs_at_once(size, pairs); }));
        number("ring", size, alone([=](uint64_t pairs) { pairs_in_ring(size, kept, pairs); }));
        number("random", size, alone([=](uint64_t pairs) { pairs_at_random(size, size, kept, pairs); }));
        number("freed_by_another", size, freed_by_another(size, passed));
    }
    report.number("mixed_ns", alone([](uint64_t pairs) { pairs_at_random(512, 16384, 64, pairs); }));
    report.number("total_ms", (now_ns() - start) / 1e6);
    report.memory_now();
    report.print();
}
