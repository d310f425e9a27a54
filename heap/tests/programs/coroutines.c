// Stacks that are not the thread's own: coroutines (ucontext) on stacks from the heap, resumed by other
// threads, and very deep recursion.
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>
#include <ucontext.h>

enum { COROUTINES = 64, ROUNDS = 60 };
static ucontext_t contexts[COROUTINES], scheduler;
static int finished;

static void coroutine(int me) {
    void *objects[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = (size_t)(me * 37 + round * 101) % 3000 + 1;
        objects[round] = malloc(size);
        fill(objects[round], size, (uint64_t)(me * 1000 + round));
        swapcontext(&contexts[me], &scheduler);
        if (round >= 10) {
            size_t old = (size_t)(me * 37 + (round - 10) * 101) % 3000 + 1;
            expect(objects[round - 10], old, (uint64_t)(me * 1000 + round - 10), "in a coroutine");
            free(objects[round - 10]);
        }
    }
    for (int round = ROUNDS - 10; round < ROUNDS; round++) free(objects[round]);
    finished++;
}

static void *one_turn(void *none) {
    for (int i = 0; i < COROUTINES; i++) swapcontext(&scheduler, &contexts[i]);
    return none;
}

__attribute__((noinline)) static long dive(long depth) {
    volatile char frame[64];
    frame[0] = (char)depth;
    char *p = malloc((size_t)(depth % 500) + 16);
    memcpy(p, &depth, sizeof depth);
    long below = depth ? dive(depth - 1) : 0;
    long kept;
    memcpy(&kept, p, sizeof kept);
    CHECK(kept == depth, "depth %ld holds %ld", depth, kept);
    free(p);
    return below + frame[0] - (char)depth + 1;
}

static void *dive_in_thread(void *none) {
    CHECK(dive(500000) == 500001, "a deep recursion");
    return none;
}

int main(void) {
    char *stacks[COROUTINES];
    for (int i = 0; i < COROUTINES; i++) {
        stacks[i] = malloc(KIB(64));
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = KIB(64);
        contexts[i].uc_link = &scheduler;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 3 == 0) {  // this turn runs in another thread
            pthread_t thread;
            pthread_create(&thread, NULL, one_turn, NULL);
            pthread_join(thread, NULL);
        } else {
            one_turn(NULL);
        }
    }
    one_turn(NULL);
    CHECK(finished == COROUTINES, "%d coroutines finished", finished);
    for (int i = 0; i < COROUTINES; i++) free(stacks[i]);

    for (int i = 0; i < 20; i++) CHECK(dive(1000) == 1001, "recursion");
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, MIB(256));
    pthread_t thread;
    CHECK(pthread_create(&thread, &large, dive_in_thread, NULL) == 0, "a thread with a large stack");
    pthread_join(thread, NULL);
    return 0;
}
