// latency [REQUEST_KROUNDS]: a CPU-bound instance (HotMem §6.2.2, Figure 10). It serves requests of a fixed amount of
// work, one after the other, and prints for every tenth of a second: its number, the requests done, their mean and their
// longest latency in microseconds.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

int main(int count, char **words) {
    uint64_t rounds = (count > 1 ? strtoull(words[1], 0, 10) : 200) * 1000;
    volatile uint64_t sink = 1;
    for (uint64_t number = 0, begin = now_ns();; number++) {
        uint64_t requests = 0, longest = 0, last = begin, end = begin + 100000000;
        do {
            uint64_t x = sink;
            for (uint64_t i = 0; i < rounds; i++)
                x = x * 6364136223846793005ull + 1442695040888963407ull;
            sink = x;
            uint64_t now = now_ns();
            if (now - last > longest)
                longest = now - last;
            last = now;
            requests++;
        } while (last < end);
        printf("%llu %llu %.1f %.1f\n", (unsigned long long)number, (unsigned long long)requests,
               (last - begin) / 1e3 / requests, longest / 1e3);
        fflush(stdout);
        begin = last;
    }
}
