// Starts N threads on the same function and waits for them; none begins before all are there.
// Uses pthreads directly and no std::thread, whose own allocations would be measured too.
#pragma once

#include "report.h"

#include <pthread.h>
#include <sched.h>

namespace bench {

constexpr int most_threads = 64;

template <class Body> uint64_t run_threads(int count, Body body) {
    struct Shared {
        Body *body;
        std::atomic<int> ready{0};
        std::atomic<bool> go{false};
    } shared{&body};
    struct One {
        Shared *shared;
        int index;
        pthread_t id;
    } one[most_threads];
    for (int i = 0; i < count; i++) {
        one[i].shared = &shared;
        one[i].index = i;
        int error = pthread_create(&one[i].id, nullptr, [](void *argument) -> void * {
            One *self = static_cast<One *>(argument);
            self->shared->ready++;
            while (!self->shared->go) sched_yield();
            (*self->shared->body)(self->index);
            return nullptr;
        }, &one[i]);
        if (error) fail("pthread_create: %s", strerror(error));
    }
    while (shared.ready != count) sched_yield();
    uint64_t start = now_ns();
    shared.go = true;
    for (int i = 0; i < count; i++) pthread_join(one[i].id, nullptr);
    return now_ns() - start;
}

} // namespace bench
