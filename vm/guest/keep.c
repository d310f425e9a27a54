// keep give: an instance that fills a pipe with pages of its own (vmsplice), prints `gives NUMBER`, its descriptor, and obeys
// commands, one word a line: `exit` (with 3), `kill` (itself), `overflow` (its memory).
// keep take: a tool that, as root, holds such pipes: `take SLOT INSTANCE NUMBER`, `drop SLOT`; it answers each with `done`.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BYTES = 1 << 20, SLOTS = 256 };

static void *pages(size_t bytes) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        _exit(1);
    memset(at, 1, bytes);
    return at;
}

static int give(void) {
    int ends[2];
    char line[64];
    if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, BYTES) < BYTES)
        return 1;
    struct iovec all = {pages(BYTES), BYTES};
    if (vmsplice(ends[1], &all, 1, 0) != BYTES)
        return 1;
    printf("gives %d\n", ends[0]);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "exit\n"))
            return 3;
        if (!strcmp(line, "kill\n"))
            kill(getpid(), SIGKILL);
        while (!strcmp(line, "overflow\n"))
            pages(16 * BYTES);
    }
    pause();
    return 0;
}

// The descriptor of that number of the one process of the instance that lets it be taken.
static int taken(const char *instance, int number) {
    char path[300];
    int pid, found = -1;
    snprintf(path, sizeof path, "/sys/fs/cgroup/instances/%s/cgroup.procs", instance);
    FILE *list = fopen(path, "r");
    while (list && found < 0 && fscanf(list, "%d", &pid) == 1) {
        char name[16] = "";
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        FILE *comm = fopen(path, "r");
        if (comm && fgets(name, sizeof name, comm) && !strcmp(name, "keep\n")) {
            int process = syscall(SYS_pidfd_open, pid, 0);
            found = syscall(SYS_pidfd_getfd, process, number, 0);
            close(process);
        }
        if (comm)
            fclose(comm);
    }
    if (list)
        fclose(list);
    return found;
}

static int take(void) {
    static int held[SLOTS];
    char line[200], instance[100];
    int slot, number;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "take %d %99s %d", &slot, instance, &number) == 3) {
            held[slot % SLOTS] = taken(instance, number);
            puts(held[slot % SLOTS] < 0 ? "failed" : "done");
        } else if (sscanf(line, "drop %d", &slot) == 1) {
            close(held[slot % SLOTS]);
            puts("done");
        }
        fflush(stdout);
    }
    return 0;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "give"))
        return give();
    if (count == 2 && !strcmp(words[1], "take"))
        return take();
    fprintf(stderr, "usage: keep give | keep take\n");
    return 2;
}
