// Objects whose lifetimes depend on a caller three frames up, through frames of equal size: after a load the
// memory is still returned, since a word of the stack separates the callers.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>

enum { SIZE = 240, ONE_IN = 12, ROUNDS = 60, OF_ROUND = 1000, PEAK = 640000, MOST = 200000, PATIENCE = 2000 };
static char *requests[PEAK], *sessions[MOST];
static int session_count;

// One return address, one height and one size for all objects.
#define FRAME __attribute__((noinline, noclone))
FRAME static char *get_memory(size_t size) { return opaque(malloc(size)); }
FRAME static char *make_buffer(size_t size) { return opaque(get_memory(size)); }
FRAME static char *make_record(size_t size) { return opaque(make_buffer(size)); }
FRAME static char *of_request(void) { return opaque(make_record(SIZE)); }
FRAME static char *of_session(void) { return opaque(make_record(SIZE)); }

// This many requests at a time; among them now and then a session, which stays.
static void serve(int count, int with_sessions, uint64_t *random) {
    for (int i = 0; i < count; i++) {
        fill(requests[i] = of_request(), SIZE, (uint64_t)i);
        if (with_sessions && next_random(random) % ONE_IN == 0 && session_count < MOST) {
            fill(sessions[session_count] = of_session(), SIZE, (uint64_t)session_count);
            session_count++;
        }
    }
    for (int i = 0; i < count; i++) free(requests[i]);
}

int main(void) {
    uint64_t random = 5;
    memset(requests, 1, sizeof requests), memset(sessions, 1, sizeof sessions);
    long own = resident_bytes();
    for (int round = 0; round < ROUNDS; round++) {  // a quiet start: sessions grow old
        serve(OF_ROUND, 1, &random);
        usleep(25000);
    }
    serve(PEAK, 1, &random);
    long live = (long)session_count * SIZE, left = 0;
    for (int round = 0; round < PATIENCE; round++) {  // little to do
        serve(OF_ROUND, 0, &random);
        left = resident_bytes() - own;
        if (left < live * 3 / 2) break;
        usleep(25000);
    }
    for (int i = 0; i < session_count; i++) expect(sessions[i], SIZE, (uint64_t)i, "after the load");
    printf("%.1f MiB live, %.1f MiB left\n", (double)live / MIB(1), (double)left / MIB(1));
    int ours = dlsym(RTLD_DEFAULT, "mayfly_heap_stats") != NULL;  // not for other heaps
    CHECK(!ours || left < live * 2, "%ld KiB are left of a load, %ld live", left / 1024, live / 1024);
    return 0;
}
