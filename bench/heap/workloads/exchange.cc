// Producer and consumer: every thread allocates objects in batches, passes each batch to the next thread, and
// frees the batches that it receives. No thread frees an object that it allocated.
//
//   exchange [THREADS] [OBJECTS_PER_THREAD]
#include "object.h"
#include "threads.h"

using namespace bench;

static const size_t batch_objects = 64, queue_batches = 64;

struct Batch {
    Object *object[batch_objects];
};

// One producer, one consumer.
struct alignas(64) Queue {
    std::atomic<uint64_t> written{0};
    alignas(64) std::atomic<uint64_t> taken{0};
    alignas(64) Batch ring[queue_batches];
};
static Queue queues[most_threads];

int main(int argc, char **argv) {
    const int threads = int(argument(argc, argv, 1, 4));
    const uint64_t batches = argument(argc, argv, 2, 4000000) / batch_objects;
    if (threads > most_threads) fail("at most %d threads", most_threads);
    uint64_t spent = run_threads(threads, [&](int index) {
        Queue &out = queues[(index + 1) % threads], &in = queues[index];
        Random random(index + 1);
        uint64_t sent = 0, received = 0;
        while (sent < batches || received < batches) {
            bool idle = true;
            if (sent < batches && sent - out.taken.load(std::memory_order_acquire) < queue_batches) {
                Batch &batch = out.ring[sent % queue_batches];
                for (Object *&object : batch.object) {
                    // Mostly small, one in 16 up to 1 KiB, like messages between threads.
                    uint64_t limit = random.below(16) ? 128 : 1000;
                    object = make(least_object_bytes + random.below(limit), sent);
                }
                out.written.store(++sent, std::memory_order_release);
                idle = false;
            }
            if (received < in.written.load(std::memory_order_acquire)) {
                for (Object *object : in.ring[received % queue_batches].object) {
                    if (object->seed != received) fail("batch %" PRIu64 ": object %p belongs to another", received, (void *)object);
                    destroy(object);
                }
                in.taken.store(++received, std::memory_order_release);
                idle = false;
            }
            if (idle) sched_yield();
        }
    });
    static Report report;
    report.number("time_ms", spent / 1e6);
    report.memory_now();
    report.print();
}
