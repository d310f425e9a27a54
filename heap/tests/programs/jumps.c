// siglongjmp out of handlers (not out of malloc), handlers on an alternate stack that itself is an object
// of the heap, allocation inside a handler for a signal the program raised itself, and recovery from a
// real fault.
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

static sigjmp_buf back;
static volatile sig_atomic_t may_jump, jumps, raised;

static void on_timer(int number) {
    (void)number;
    if (may_jump) {
        may_jump = 0;
        jumps++;
        siglongjmp(back, 1);
    }
}
static void on_fault(int number) {
    (void)number;
    siglongjmp(back, 2);
}
static void on_raise(int number) {  // raise() is synchronous: the program is not inside malloc
    (void)number;
    char *p = malloc(20000);
    fill(p, 20000, 6);
    expect(p, 20000, 6, "in a handler");
    free(p);
    free(malloc(16));
    raised++;
}

static void *with_alternate_stack(void *none) {
    stack_t stack = {.ss_sp = malloc(KIB(64)), .ss_size = KIB(64)};
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    for (int i = 0; i < 500; i++) {
        char *p = malloc((size_t)i + 1);
        fill(p, (size_t)i + 1, i);
        raise(SIGUSR2);
        expect(p, (size_t)i + 1, i, "after a handler on another stack");
        free(p);
    }
    stack_t off = {.ss_flags = SS_DISABLE};
    sigaltstack(&off, NULL);
    free(stack.ss_sp);
    return none;
}

int main(void) {
    struct sigaction timer = {.sa_handler = on_timer}, fault = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK},
                     own = {.sa_handler = on_raise, .sa_flags = SA_ONSTACK};
    sigaction(SIGALRM, &timer, NULL);
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGUSR2, &own, NULL);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, NULL);
    static char *volatile objects[64];
    for (volatile int round = 0; round < 3000; round++) {
        int at = round % 64;
        free(objects[at]);
        objects[at] = malloc((size_t)round * 7 % 5000 + 1);
        fill(objects[at], (size_t)round * 7 % 5000 + 1, (uint64_t)round);
        if (sigsetjmp(back, 1) == 0) {
            may_jump = 1;
            for (volatile int spin = 0; spin < 200000; spin++) {}  // the jump leaves from here
            may_jump = 0;
        }
        expect(objects[at], (size_t)round * 7 % 5000 + 1, (uint64_t)round, "after siglongjmp");
    }
    CHECK(jumps > 100, "only %d jumps", (int)jumps);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);

    with_alternate_stack(NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, with_alternate_stack, NULL);
    pthread_join(thread, NULL);
    CHECK(raised == 1000, "%d handlers ran", (int)raised);

    char *wall = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (volatile int round = 0; round < 200; round++) {
        char *volatile kept = malloc(100);
        fill(kept, 100, 5);
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)wall = 1;
            CHECK(0, "writing to the wall did not fault");
        }
        expect(kept, 100, 5, "after a fault");
        free(kept);
    }
    return 0;
}
