// Multi-threaded churn: random sizes (many small, a long tail to 32 KiB) and lifetimes over three orders
// of magnitude.
//
//   churn [THREADS] [OPERATIONS_PER_THREAD]
#include "object.h"
#include "threads.h"

#include <sys/mman.h>

using namespace bench;

// A thread replaces its young slots most often, so some objects live briefly, some long, some between.
static const size_t young_slots = 1000, middle_slots = 10000, old_slots = 60000;
static const size_t all_slots = young_slots + middle_slots + old_slots;

static size_t random_size(Random &random) {
    uint64_t kind = random.below(1000);
    if (kind < 700) return least_object_bytes + random.below(128);
    if (kind < 950) return 128 + random.below(1024 - 128);
    if (kind < 995) return 1024 + random.below(7168);
    return 8192 + random.below(24576);
}

static size_t random_slot(Random &random) {
    uint64_t kind = random.below(100);
    if (kind < 90) return random.below(young_slots);
    if (kind < 98) return young_slots + random.below(middle_slots);
    return young_slots + middle_slots + random.below(old_slots);
}

int main(int argc, char **argv) {
    const int threads = int(argument(argc, argv, 1, 4));
    const uint64_t operations = argument(argc, argv, 2, 10000000);
    if (threads > most_threads) fail("at most %d threads", most_threads);
    auto *slots = static_cast<Object **>(mmap(nullptr, sizeof(Object *) * all_slots * threads, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    uint64_t spent = run_threads(threads, [&](int index) {
        Object **mine = slots + all_slots * index;
        Random random(index + 1);
        for (uint64_t n = 0; n < operations; n++) {
            Object *&slot = mine[random_slot(random)];
            if (slot) destroy(slot);
            slot = make(random_size(random), n);
        }
    });
    static Report report;
    report.number("time_ms", spent / 1e6);
    report.memory_now();
    uint64_t live_bytes = 0;
    for (size_t i = 0; i < all_slots * threads; i++)
        if (slots[i]) {
            live_bytes += slots[i]->size;
            destroy(slots[i]); // not the thread that allocated it
        }
    report.number("live_bytes", double(live_bytes));
    report.print();
}
