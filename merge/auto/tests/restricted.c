/* A program that restricts itself while the scanner runs, and then goes on with large blocks: `restricted seccomp` by a
 * filter of system calls that ends the process at any call but the few that it makes itself, for all its threads;
 * `restricted unshare` by a namespace, which only a process of one thread may enter. Exits with 77 where the system has
 * neither to give. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, MOST_WAIT_S = 30 };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "restricted.c:%d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static int threads(void) {
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void use_a_block(void) {
    char *block = malloc(8 * MIB);
    CHECK(block);
    memset(block, 1, 8 * MIB);
    free(block);
}

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void filter(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(write), ALLOW(mmap), ALLOW(munmap), ALLOW(mprotect), ALLOW(brk), ALLOW(clock_nanosleep),
        ALLOW(fstat), ALLOW(newfstatat), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
        CHECK(errno == ENOSYS || errno == EINVAL);
        _exit(77);
    }
}

static void enter_a_namespace(void) {
    if (unshare(CLONE_NEWUSER)) {
        CHECK(errno == EPERM || errno == ENOSYS || errno == ENOSPC);
        _exit(77);
    }
}

int main(int count, char **words) {
    CHECK(count == 2);
    char *kept = malloc(8 * MIB);
    CHECK(kept);
    memset(kept, 1, 8 * MIB);
    time_t end = time(NULL) + MOST_WAIT_S;
    while (threads() < 2) CHECK(time(NULL) < end);
    struct timespec scans = {.tv_sec = 2, .tv_nsec = 500000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &scans, NULL);
    if (!strcmp(words[1], "seccomp")) filter();
    else enter_a_namespace();
    for (int round = 0; round < 4; round++) {
        use_a_block();
        struct timespec second = {.tv_sec = 1};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &second, NULL);
    }
    CHECK(write(1, "done\n", 5) == 5);
    _exit(0);
}
