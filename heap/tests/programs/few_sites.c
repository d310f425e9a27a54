// Stack height separates call sites; stacks other than the thread's own, and threads whose first use of the
// heap is fork(), do not create endless sites.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

static ucontext_t back;
static void *made;
static void fiber(void) { made = malloc(opaque_size(200)); }

static void *forks_first(void *argument) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    free(opaque(malloc(opaque_size(300))));
    return argument;
}

int main(void) {
    int (*statistics)(char *, size_t) = dlsym(RTLD_DEFAULT, "mayfly_heap_stats");
    if (!statistics) return 0;  // another heap
    free(opaque(malloc(opaque_size(100))));  // the thread has a stack of its own
    enum { FIBERS = 400, THREADS = 60, STACK = 1 << 16 };
    for (int i = 0; i < FIBERS; i++) {
        ucontext_t context;
        getcontext(&context);
        char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // kept: each is elsewhere
        CHECK(stack != MAP_FAILED, "mmap");
        context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = STACK, context.uc_link = &back;
        makecontext(&context, fiber, 0);
        swapcontext(&back, &context);
        free(made);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, forks_first, NULL) == 0, "thread");
        pthread_join(thread, NULL);
    }
    static char report[8192];
    statistics(report, sizeof report);
    char *at = strstr(report, "\"heap.sites\":");
    CHECK(at && atoi(at + 13) < 60, "%d sites for %d fibers and %d threads", at ? atoi(at + 13) : -1, FIBERS, THREADS);
    return 0;
}
