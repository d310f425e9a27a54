// Under the auto library: forks again and again, from before its blocks are scanned until they are shared, a
// part at a time, when there is no child. Every child frees a block and allocates another. forks MIB, or forks
// MIB clone: by a system call, past the C library's handlers for fork.
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 3 };

static void fail(const char *what) {
    fprintf(stderr, "forks: %s\n", what);
    exit(1);
}

static long anonymous_kib(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = -1;
    while (fgets(line, sizeof line, file)) sscanf(line, "Anonymous: %ld", &kib);
    fclose(file);
    return kib;
}

int main(int count, char **words) {
    size_t bytes = (count > 1 ? strtoull(words[1], NULL, 10) : 24) << 20;
    unsigned char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(bytes);
        for (size_t at = 0; at < bytes; at++) blocks[i][at] = at >> 12 ^ at * (i + 3);
    }
    int forks = 0, is_clone = count > 2 && !strcmp(words[2], "clone");
    for (; anonymous_kib() > (long)(BLOCKS * bytes >> 10) / 5; forks++) {
        pid_t child = is_clone ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (child < 0) fail("fork");
        if (!child) {
            alarm(60);
            free(blocks[0]);
            memset(malloc(bytes), 1, 1 << 16);
            for (size_t at = 7; at < bytes; at += 4096)
                for (int i = 1; i < BLOCKS; i++)
                    if (blocks[i][at] != (unsigned char)(at >> 12 ^ at * (i + 3))) _exit(1);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("a child did not end as it should");
        usleep(100000);
    }
    printf("%d forks\n", forks);
    return 0;
}
