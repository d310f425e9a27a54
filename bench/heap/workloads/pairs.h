// What one allocation and its free cost, in nanoseconds: the loops and rounds that `paths` and `sizes` share.
//
// Each path runs in short rounds. One thread is timed by its processor time, and the median round counts.
// Several are timed by the wall, as they may wait for each other: a pair is charged wall time x cores in
// use / pairs, and the shortest round counts, since whatever else the machine does can only make it
// longer.
#pragma once

#include "report.h"
#include "threads.h"

#include <algorithm>

namespace bench {

inline uint64_t round_ns = 10000000;
constexpr int rounds = 15;
constexpr int most_kept = 4096;

// Runs `time_of(pairs)`, which returns the ns that this many pairs took, in rounds of about round_ns; returns
// the time of one pair.
template <class TimeOf> double pair_ns(TimeOf time_of, bool is_alone) {
    uint64_t pairs = 1000, spent;
    for (;;) { // finds how many pairs make a round, and warms up
        spent = ~uint64_t(0);
        // The least of three: a thread that started late must not make the rounds too short.
        for (int tries = 0; tries < 3; tries++) spent = std::min(spent, time_of(pairs));
        if (spent > round_ns / 2) break;
        pairs *= 2;
    }
    pairs = pairs * round_ns / spent + 1;
    double round[rounds];
    for (double &one : round) one = double(time_of(pairs)) / pairs;
    std::sort(round, round + rounds);
    return is_alone ? round[rounds / 2] : round[0];
}

template <class Body> double alone(Body body) {
    return pair_ns([&](uint64_t pairs) {
        uint64_t start = thread_cpu_ns();
        body(pairs);
        return thread_cpu_ns() - start;
    }, true);
}

// The same body in every thread, each making all the pairs.
template <class Body> double in_threads(int threads, Body body) {
    double cores = double(std::min<long>(threads, sysconf(_SC_NPROCESSORS_ONLN)));
    return pair_ns([&](uint64_t pairs) { return run_threads(threads, [&](int) { body(pairs); }); }, false) * cores / threads;
}

// Keeps the compiler from removing a pair, and writes nothing that threads would share.
inline void keep(void *object) { asm volatile("" : : "r"(object) : "memory"); }

// The shortest path: an object that is freed at once.
inline void pairs_at_once(size_t size, uint64_t pairs) {
    for (uint64_t n = 0; n < pairs; n++) {
        char *object = static_cast<char *>(malloc(size));
        object[0] = object[size - 1] = char(n);
        keep(object);
        free(object);
    }
}

// `kept` objects alive, the oldest freed first.
inline void pairs_in_ring(size_t size, uint64_t kept, uint64_t pairs) {
    static thread_local void *ring[most_kept];
    for (uint64_t n = 0; n < pairs; n++) {
        void *&slot = ring[n % kept];
        free(slot);
        slot = malloc(size);
        static_cast<char *>(slot)[0] = static_cast<char *>(slot)[size - 1] = char(n);
    }
    for (uint64_t n = 0; n < kept; n++) {
        free(ring[n]);
        ring[n] = nullptr;
    }
}

} // namespace bench
