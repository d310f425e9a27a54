// What the kernel's work costs on the simulated machine, to be held against a real one's: kernel_costs fault|call|switch TIMES
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

// First touches of pages of one mapping.
static void faults(long times) {
    char *pages = mmap(NULL, (size_t)times * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) exit(1);
    for (long i = 0; i < times; i++) *(volatile char *)(pages + i * PAGE) = 1;
}

// A system call that does nearly nothing.
static void calls(long times) {
    for (long i = 0; i < times; i++) syscall(SYS_getppid);
}

// Two processes that hand a byte to and fro through pipes: two switches a turn.
static void switches(long times) {
    int there[2], back[2];
    char byte = 0;
    if (pipe(there) || pipe(back)) exit(1);
    pid_t child = fork();
    if (child == 0) {
        for (long i = 0; i < times; i++)
            if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    for (long i = 0; i < times; i++)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1) exit(1);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    long times = argc > 2 ? atol(argv[2]) : 0;
    if (argc > 1 && strcmp(argv[1], "fault") == 0) faults(times);
    else if (argc > 1 && strcmp(argv[1], "call") == 0) calls(times);
    else if (argc > 1 && strcmp(argv[1], "switch") == 0) switches(times);
    else return fprintf(stderr, "usage: kernel_costs fault|call|switch TIMES\n"), 2;
    printf("kernel_costs: %s, %ld times\n", argv[1], times);
}
