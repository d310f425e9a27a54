// A signal handler that ends the process by _exit while a trace is recorded: the process ends, wherever the
// thread was interrupted.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

static void end(int number) { _exit(number == SIGALRM ? 0 : 1); }

int main(int count, char **arguments) {
    if (!dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) return 0;  // other heaps record nothing
    if (count < 2) {
        for (int round = 0; round < 10; round++) {
            pid_t child = fork();
            if (child == 0) {
                char pause[16];
                snprintf(pause, sizeof pause, "%d", 2000 + 137 * round);
                setenv("MAYFLY_HEAP_TRACE", "/dev/null", 1);
                execl("/proc/self/exe", arguments[0], pause, NULL);
            }
            int status = 0;
            alarm(60);
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "round %d: status %#x", round, status);
        }
        return 0;
    }
    signal(SIGALRM, end);
    struct itimerval timer = {{0, 0}, {0, atoi(arguments[1])}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (;;) free(opaque(malloc(opaque_size(100))));
}
