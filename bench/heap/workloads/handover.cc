// Servers that start a thread per connection: each thread replaces random objects in the array that it
// receives, then passes the array to a new thread and exits. Most objects outlive the thread that made them.
//
//   handover [CHAINS] [THREADS_PER_CHAIN] [REPLACEMENTS_PER_THREAD]
#include "object.h"
#include "threads.h"

using namespace bench;

static const size_t array_objects = 5000;

struct Chain {
    Object *object[array_objects];
    uint64_t threads_left, replacements, number;
    std::atomic<bool> done{false};
};
static Chain chains[most_threads];

static void start_next(Chain *chain);

static void *run_link(void *argument) {
    Chain *chain = static_cast<Chain *>(argument);
    Random random(chain->number++);
    for (uint64_t n = 0; n < chain->replacements; n++) {
        Object *&slot = chain->object[random.below(array_objects)];
        destroy(slot);
        slot = make(least_object_bytes + random.below(1000), n);
    }
    if (--chain->threads_left)
        start_next(chain);
    else
        chain->done = true;
    return nullptr;
}

static void start_next(Chain *chain) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_t id;
    if (int error = pthread_create(&id, &attributes, run_link, chain)) fail("pthread_create: %s", strerror(error));
    pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv) {
    const size_t count = argument(argc, argv, 1, 8);
    const uint64_t threads = argument(argc, argv, 2, 300);
    const uint64_t replacements = argument(argc, argv, 3, 20000);
    if (count > most_threads) fail("at most %d chains", most_threads);
    uint64_t start = now_ns();
    for (size_t i = 0; i < count; i++) {
        Chain &chain = chains[i];
        chain.threads_left = threads;
        chain.replacements = replacements;
        chain.number = i * threads + 1;
        for (Object *&object : chain.object) object = make(least_object_bytes + (&object - chain.object) % 1000, 0);
        start_next(&chain);
    }
    for (size_t i = 0; i < count; i++)
        while (!chains[i].done) sleep_ms(1);
    uint64_t spent = now_ns() - start;
    static Report report;
    report.number("time_ms", spent / 1e6);
    report.memory_now();
    for (size_t i = 0; i < count; i++)
        for (Object *object : chains[i].object) destroy(object);
    report.print();
}
