// vfork and exec, posix_spawn, popen, system, and a daemon's double fork, from a threaded program with a
// busy heap.
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

extern char **environ;
static atomic_int stopping;

static void *worker(void *none) {
    (void)none;
    uint64_t random = 3;
    while (!atomic_load(&stopping)) free(malloc(next_random(&random) % 5000));
    return NULL;
}

static void ended(pid_t pid, const char *what) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "%s ended with %#x", what, status);
}

int main(int argc, char **argv) {
    if (argc > 1) {  // what is started below
        char *p = malloc(MIB(3));
        memset(p, 1, MIB(3));
        free(p);
        return 0;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    char *child[] = {argv[0], "child", NULL};
    for (int i = 0; i < 60; i++) {
        char **arguments = calloc(3, sizeof *arguments);
        memcpy(arguments, child, sizeof child);
        pid_t pid = vfork();
        if (pid == 0) {
            execv(arguments[0], arguments);
            _exit(127);
        }
        ended(pid, "vfork + exec");
        CHECK(posix_spawn(&pid, argv[0], NULL, NULL, arguments, environ) == 0, "posix_spawn");
        ended(pid, "posix_spawn");
        free(arguments);
    }
    FILE *pipe = popen("echo one two", "r");
    char line[50] = "";
    CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "one two\n") == 0, "popen gave '%s'", line);
    CHECK(pclose(pipe) == 0, "pclose");
    CHECK(system("exit 3") == 3 << 8, "system");

    int ends[2];
    CHECK(pipe2(ends, 0) == 0, "pipe");
    char *kept = malloc(1000);
    fill(kept, 1000, 8);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork() != 0) exit(0);
        alarm(20);
        expect(kept, 1000, 8, "in the daemon");
        kept = realloc(kept, MIB(1));
        expect(kept, 1000, 8, "in the daemon, moved");
        for (int i = 1; i < 100000; i++) free(malloc((size_t)i));
        pthread_t in_daemon;
        int stop_soon = pthread_create(&in_daemon, NULL, worker, NULL);
        CHECK(stop_soon == 0, "a thread in the daemon");
        usleep(20000);
        atomic_store(&stopping, 1);
        pthread_join(in_daemon, NULL);
        CHECK(write(ends[1], "well", 4) == 4, "write");
        exit(0);
    }
    ended(pid, "the daemon's parent");
    close(ends[1]);
    CHECK(read(ends[0], line, 5) == 4 && memcmp(line, "well", 4) == 0, "the daemon did not say that it is well");
    atomic_store(&stopping, 1);
    pthread_join(thread, NULL);
    return 0;
}
