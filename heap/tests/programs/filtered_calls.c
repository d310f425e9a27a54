// A program that allows itself only the system calls that memory needs (seccomp) and is killed at any other:
// the heap makes none, also where it would look at its cgroup or for a profiler.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#define ALLOW(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

enum { COUNT = 20000, SECONDS = 3 };
static void *objects[COUNT];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc == 1) {  // again, so that the heap starts with a profiler's socket to look for
        setenv("MAYFLY_HEAP_CONTROL", "on", 1);
        execl("/proc/self/exe", argv[0], "on", (char *)NULL);
        CHECK(0, "exec: %s", strerror(errno));
    }
    // A call that sets no filter changes nothing.
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) != 0, "a filter at NULL");
    struct sock_filter calls[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(exit_group), ALLOW(mmap), ALLOW(munmap), ALLOW(mprotect),
        ALLOW(mremap), ALLOW(madvise), ALLOW(futex), ALLOW(clock_gettime), ALLOW(rt_sigreturn),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof calls / sizeof *calls, calls};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "the filter: %s", strerror(errno));
    uint64_t random = 1;
    // More than the 32 MiB from which the heap looks at its cgroup, for longer than it waits before it does.
    for (double end = now() + SECONDS; now() < end;)
        for (int i = 0; i < COUNT; i++) {
            size_t at = next_random(&random) % COUNT;
            size_t size = next_random(&random) % (i % 8 ? 5000 : 100000) + 1;
            free(objects[at]);
            CHECK((objects[at] = malloc(size)), "malloc(%zu)", size);
            memset(objects[at], 1, size < 5000 ? size : 5000);
        }
    void *large = realloc(malloc(MIB(100)), MIB(200));
    CHECK(large, "200 MiB");
    free(large);
    _exit(0);
}
