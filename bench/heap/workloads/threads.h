// Starts N threads on the same function and waits for them; none begins before all are ready. The time is
// from the first one's beginning to the last one's end, without the creation and exit of threads.
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
        uint64_t began, ended;
    } one[most_threads];
    for (int i = 0; i < count; i++) {
        one[i].shared = &shared;
        one[i].index = i;
        int error = pthread_create(&one[i].id, nullptr, [](void *argument) -> void * {
            One *self = static_cast<One *>(argument);
            self->shared->ready++;
            while (!self->shared->go) sched_yield();
            self->began = now_ns();
            (*self->shared->body)(self->index);
            self->ended = now_ns();
            return nullptr;
        }, &one[i]);
        if (error) fail("pthread_create: %s", strerror(error));
    }
    while (shared.ready != count) sched_yield();
    shared.go = true;
    uint64_t first = ~uint64_t(0), last = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(one[i].id, nullptr);
        if (one[i].began < first) first = one[i].began;
        if (one[i].ended > last) last = one[i].ended;
    }
    return last - first;
}

} // namespace bench
