// A program whose allocations are recorded, and which does to the recording what programs do: its arguments
// are carried out one after another. It prints "fine" and ends in 0.
// variants: see test_recording.py
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static volatile int stop;

__attribute__((noinline)) static void churned(size_t size) {
    char *object = opaque(malloc(size));
    object[0] = 1;
    free(object);
}

static void *churn(void *unused) {
    while (!stop) churned(3000);
    return unused;
}

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child ended with %d", status);
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    int running = 0;
    for (int i = 1; i < argc; i++) {
        const char *action = argv[i], *file = getenv("RECORDED_FILE");
        if (!strcmp(action, "churn")) {
            for (int n = 0; n < 20000; n++) churned(1000 + n % 2000);
        } else if (!strcmp(action, "threads") && !running) {
            for (; running < 2; running++) pthread_create(&threads[running], NULL, churn, NULL);
        } else if (!strcmp(action, "system")) {
            CHECK(system("true") == 0, "system");
        } else if (!strcmp(action, "exec")) {
            argv[i] = argv[0];
            execv("/proc/self/exe", argv + i);
            CHECK(0, "exec: %s", strerror(errno));
        } else if (!strcmp(action, "fork")) {
            pid_t child = fork();
            if (child == 0) {
                running = 0;
                continue;
            }
            wait_for(child);
            break;
        } else if (!strcmp(action, "clone")) {  // past the C library's handlers
            pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
            if (child == 0) {
                for (int n = 0; n < 20000; n++) churned(1000 + n % 2000);
                _exit(0);
            }
            wait_for(child);
        } else if (!strcmp(action, "close")) {
            syscall(SYS_close_range, 3, ~0u, 0);
            CHECK(open("/dev/null", O_RDONLY) > 2, "%s", strerror(errno));
        } else if (!strcmp(action, "nobody")) {
            CHECK(setgid(65534) == 0 && setuid(65534) == 0, "%s", strerror(errno));
        } else if (!strcmp(action, "chroot")) {
            CHECK(chroot("/proc") == 0 && chdir("/") == 0, "%s", strerror(errno));
        } else if (!strcmp(action, "limit")) {
            struct rlimit small = {4096, 4096};
            CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0, "%s", strerror(errno));
        } else if (!strcmp(action, "truncate")) {
            if (truncate(file, 0) != 0) continue;  // of another user, or gone
        } else if (!strcmp(action, "unlink")) {
            if (unlink(file) != 0) continue;
        } else if (!strcmp(action, "kill")) {
            kill(getpid(), SIGKILL);
        } else if (!strcmp(action, "sleep")) {
            usleep(100000);
        } else {
            CHECK(!strcmp(action, "threads"), "no action: %s", action);
        }
    }
    stop = 1;
    for (int i = 0; i < running; i++) pthread_join(threads[i], NULL);
    puts("fine");
    return 0;
}
