// Objects of requests and objects of sessions, of one size, by one return address at one height: only a
// caller three frames up differs, behind frames of equal size (`operator new`, `xmalloc`, a container's
// growth). After a quiet start comes one peak; then its requests end, its sessions stay, and there is little
// to do. What is still resident?
//
//   callers [PEAK_REQUESTS] [ROUNDS_AT_THE_START] [ROUNDS_AT_THE_END]
#include "object.h"

#include <sys/mman.h>

using namespace bench;

static const size_t object_bytes = 240;
static const uint64_t session_every = 12;
static const uint64_t requests_of_round = 1000;

// None ends in a tail call, and none has local variables on the stack.
#define FRAME __attribute__((noinline, noclone))
static void *volatile last;
FRAME static void *get_memory(size_t bytes, uint64_t seed) {
    void *object = make(bytes, seed);
    return last = object;
}
FRAME static void *make_buffer(size_t bytes, uint64_t seed) { return last = get_memory(bytes, seed); }
FRAME static void *make_record(size_t bytes, uint64_t seed) { return last = make_buffer(bytes, seed); }
FRAME static void *of_request(uint64_t seed) { return last = make_record(object_bytes, seed); }
FRAME static void *of_session(uint64_t seed) { return last = make_record(object_bytes, seed); }

int main(int argc, char **argv) {
    const uint64_t peak = argument(argc, argv, 1, 640000), start = argument(argc, argv, 2, 60);
    const uint64_t end = argument(argc, argv, 3, 160);
    const uint64_t most_sessions = 2 * (peak + start * requests_of_round) / session_every;
    auto *table = static_cast<Object **>(mmap(nullptr, (peak + most_sessions) * sizeof(Object *), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    Object **requests = table, **sessions = table + peak;
    uint64_t kept = 0, made = 0;
    Random random(5);
    auto serve = [&](uint64_t count, bool with_sessions) {
        for (uint64_t n = 0; n < count; n++) {
            requests[n] = static_cast<Object *>(of_request(made++));
            if (with_sessions && random.below(session_every) == 0 && kept < most_sessions)
                sessions[kept++] = static_cast<Object *>(of_session(made++));
        }
        for (uint64_t n = 0; n < count; n++) destroy(requests[n]);
    };
    static Report report;
    report.memory_now("own."); // the table among it
    uint64_t spent = 0;
    auto timed = [&](uint64_t count, bool with_sessions) {
        uint64_t begin = thread_cpu_ns();
        serve(count, with_sessions);
        spent += thread_cpu_ns() - begin;
    };
    for (uint64_t round = 0; round < start; round++) {
        timed(requests_of_round, true);
        sleep_ms(25);
    }
    timed(peak, true);
    report.memory_now("at_once.");
    for (uint64_t round = 0; round < end; round++) {
        timed(requests_of_round, false);
        sleep_ms(25);
    }
    for (uint64_t n = 0; n < kept; n++) check(sessions[n]);
    report.number("time_ms", spent / 1e6);
    report.number("live_bytes", double(kept * object_bytes));
    report.memory_now();
    report.print();
}
