// Signals arrive every 100 µs, in all threads, while they allocate: calls are interrupted anywhere and
// nothing is lost.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>

static volatile sig_atomic_t handled;
static atomic_int stopping;

static void handler(int number) {
    char stack[2000];
    memset(stack, number, sizeof stack);  // overwrites the stack below the interrupted frame
    opaque(stack);
    int saved = errno;
    errno = EINTR;
    handled++;
    errno = saved;
}

static void *work(void *seed) {
    enum { KEPT = 400 };
    void *objects[KEPT] = {0};
    size_t sizes[KEPT] = {0};
    uint64_t random = (uintptr_t)seed;
    while (!atomic_load(&stopping)) {
        for (int i = 0; i < 1000; i++) {
            uint64_t at = next_random(&random) % KEPT;
            if (objects[at]) expect(objects[at], sizes[at], at, "under signals");
            size_t size = next_random(&random) % ((size_t)1 << (4 + next_random(&random) % (i % 100 ? 8 : 18)));
            if (at % 3 == 0) {
                objects[at] = realloc(objects[at], size + 1);
            } else {
                free(objects[at]);
                objects[at] = malloc(size);
            }
            CHECK(objects[at], "no memory");
            sizes[at] = size;
            fill(objects[at], size, at);
        }
    }
    for (int i = 0; i < KEPT; i++) free(objects[i]);
    return NULL;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct itimerval often = {{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 20000; i++) {
        for (int t = 0; t < 3; t++) pthread_kill(threads[t], SIGUSR1);
        struct timespec nap = {0, 50000};
        nanosleep(&nap, NULL);
        if (i % 5000 == 0) free(malloc(100));
    }
    atomic_store(&stopping, 1);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(handled > 1000, "only %d signals were handled", (int)handled);
    return 0;
}
