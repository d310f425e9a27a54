// Runs a program and kills it with SIGKILL at its N-th step. A step is the entry or the exit of a system call in any of
// its threads, so that N = 1, 2, 3... kills it at every step that another process could notice. Steps are counted from
// the program's first prctl(STEPS_BEGIN) to its prctl(STEPS_END), or all of them with `all`.
//
// usage: kill_at N count|all COMMAND...
// Prints the step it was killed at and exits with 0; exits with 3 if the program ended by itself, with 4 if it failed.
// variants: started by the runner
#include "merge_test.h"

#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void resume(pid_t thread, int signal_number) {
    // A thread may have been killed in between.
    if (ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(intptr_t)signal_number)) CHECK(errno == ESRCH, "%m");
}

int main(int count, char **words) {
    CHECK(count > 3, "usage: kill_at N count|all COMMAND...");
    long at = atol(words[1]), steps = 0;
    bool counting = !strcmp(words[2], "all");
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        execvp(words[3], words + 3);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status), "%m");
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    CHECK(!ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)options), "%m");
    resume(child, 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        CHECK(thread > 0, "%m");
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread != child) continue;
            printf("ended after %ld steps\n", steps);
            return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 3 : 4;
        }
        int signal_number = WSTOPSIG(status);
        if (signal_number != (SIGTRAP | 0x80)) {
            // A new thread's first stop, an exec or a clone, or a signal to pass on.
            bool event = status >> 16 || signal_number == SIGSTOP || signal_number == SIGTRAP;
            resume(thread, event ? 0 : signal_number);
            continue;
        }
        struct __ptrace_syscall_info info = {0};
        ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof info, &info);
        static uint64_t number;
        bool entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
        if (entry) number = info.entry.nr;
        if (entry && number == SYS_prctl && info.entry.args[0] == STEPS_BEGIN) counting = true;
        if (entry && number == SYS_prctl && info.entry.args[0] == STEPS_END) counting = false;
        if (counting && ++steps == at) {
            kill(child, SIGKILL);
            // The other threads' ends, too: the process exists until its tracer has seen them.
            while ((thread = waitpid(-1, &status, __WALL)) > 0)
                if (thread == child && (WIFSIGNALED(status) || WIFEXITED(status))) break;
            printf("killed at step %ld, %s of system call %llu\n", steps, entry ? "entry" : "exit",
                   (unsigned long long)number);
            return 0;
        }
        resume(thread, 0);
    }
}
