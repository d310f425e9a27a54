// Mixed large objects, 8 KiB to 1 MiB (each power of two equally likely), written page by page, in two
// threads.
//
//   large [THREADS] [OPERATIONS_PER_THREAD]
#include "object.h"
#include "threads.h"

using namespace bench;

static const size_t slots_per_thread = 400;

static size_t random_size(Random &random) {
    size_t low = size_t(8192) << random.below(7);
    return low + random.below(low);
}

int main(int argc, char **argv) {
    const int threads = int(argument(argc, argv, 1, 2));
    const uint64_t operations = argument(argc, argv, 2, 600000);
    if (threads > most_threads) fail("at most %d threads", most_threads);
    static Object *slots[most_threads][slots_per_thread];
    uint64_t spent = run_threads(threads, [&](int index) {
        Random random(index + 1);
        for (uint64_t n = 0; n < operations; n++) {
            // One operation in eight touches the older half, so that lifetimes differ.
            size_t half = slots_per_thread / 2;
            Object *&slot = slots[index][random.below(8) ? random.below(half) : half + random.below(half)];
            if (slot) destroy(slot);
            size_t size = random_size(random);
            slot = make(size, n);
            char *byte = reinterpret_cast<char *>(slot);
            for (size_t at = 4096; at < size - 8; at += 4096) byte[at] = char(n);
        }
    });
    static Report report;
    report.number("time_ms", spent / 1e6);
    report.memory_now();
    uint64_t live_bytes = 0;
    for (auto &of_thread : slots)
        for (Object *object : of_thread)
            if (object) {
                live_bytes += object->size;
                destroy(object);
            }
    report.number("live_bytes", double(live_bytes));
    report.print();
}
