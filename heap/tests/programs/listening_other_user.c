// Another user listens on the name of this program's profiler and does not accept: malloc does not wait.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

enum { NOBODY = 65534, SECONDS = 5, STALL_MS = 400, MOST_STALLS = 3 };

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

// How often this thread has waited. (A busy machine stalls a program without waiting.)
static long waits(void) {
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
}

// Connects until the queue has no room for another connection.
static void listen_as_other_user(pid_t program, int ready) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t bytes = offsetof(struct sockaddr_un, sun_path) + 1 + sprintf(name.sun_path + 1, "mayfly-profile-%d", program);
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "cannot change the user");
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), error = 0;
    CHECK(bind(listener, (void *)&name, bytes) == 0 && listen(listener, 0) == 0, "cannot listen: %s", strerror(errno));
    while (!error) error = connect(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), (void *)&name, bytes);
    CHECK(errno == EAGAIN, "the queue is not full: %s", strerror(errno));
    CHECK(write(ready, "", 1) == 1, "the program does not read");
    alarm(60);
    pause();
}

int main(int count, char **arguments) {
    if (!dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) return 0;  // other heaps have no profiler
    if (geteuid() != 0) return 0;  // one user only
    if (count < 2) {
        setenv("MAYFLY_HEAP_CONTROL", "on", 1);
        execl("/proc/self/exe", arguments[0], "attachable", NULL);
    }
    int ready[2];
    char byte;
    pid_t program = getpid();
    CHECK(pipe(ready) == 0, "pipe");
    pid_t listener = fork();
    if (listener == 0) {
        listen_as_other_user(program, ready[1]);
        _exit(1);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1, "the listener does not listen");
    static void *kept[1000];
    int stalls = 0;
    long before = now_ms(), end = before + SECONDS * 1000, waited = waits();
    for (int i = 0; before < end; i = (i + 1) % 1000) {
        free(kept[i]);
        kept[i] = opaque(malloc(opaque_size(16 + i * 97 % 8000)));
        long now = now_ms();
        stalls += now - before >= STALL_MS && waits() != waited;
        before = now, waited = waits();
    }
    kill(listener, SIGKILL);
    waitpid(listener, NULL, 0);
    CHECK(stalls <= MOST_STALLS, "malloc stood still %d times in %d s", stalls, SECONDS);
    return 0;
}
