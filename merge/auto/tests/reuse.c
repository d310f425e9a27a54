/* A program that frees and allocates its large buffers over and over, as numerical ones do for each request. Prints
 * "at rest" after its rounds, and reads a line before it ends, so that the test can read its memory. `reuse busy` goes
 * on to write to a block of 1 MiB until then, so that the scanner has no long rests. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096, BUFFERS = 3, ROUNDS = 100, MOST_WAIT_S = 30 };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "reuse.c:%d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static long faults(void) {
    struct rusage usage;
    CHECK(!getrusage(RUSAGE_SELF, &usage));
    return usage.ru_minflt;
}

/* Allocates, writes and frees buffers of 2, 3 and 4 MiB; returns the page faults of it. */
static long one_round(int seed) {
    long before = faults();
    char *buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        size_t bytes = (i + 2) * (size_t)MIB;
        if (seed & 1) CHECK(buffers[i] = malloc(bytes));
        else CHECK(!posix_memalign((void **)&buffers[i], 64, bytes));
        memset(buffers[i], seed + i, bytes);
    }
    for (int i = 0; i < BUFFERS; i++) {
        for (size_t at = 0; at < (i + 2) * (size_t)MIB; at += PAGE) CHECK(buffers[i][at] == (char)(seed + i));
        free(buffers[i]);
    }
    return faults() - before;
}

static size_t data_bytes(void) {
    char line[256];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmData: %zu kB", &kib) == 1) break;
    fclose(status);
    return kib << 10;
}

static void check_zeros(void) {
    char *zeros = calloc(3, MIB);
    CHECK(zeros);
    for (size_t at = 0; at < 3 * (size_t)MIB; at += 64) CHECK(!zeros[at]);
    free(zeros);
}

/* What is kept is not missing when the process may have no more: all of it fits in the limit once, not twice. */
static void check_limit(void) {
    struct rlimit before, limit;
    char *buffers[4];
    for (int i = 0; i < 4; i++) CHECK(buffers[i] = malloc(8 * MIB));
    CHECK(!getrlimit(RLIMIT_DATA, &before));
    limit = before;
    limit.rlim_cur = data_bytes() + 4 * MIB;
    CHECK(!setrlimit(RLIMIT_DATA, &limit));
    for (int i = 0; i < 4; i++) free(buffers[i]);
    char *volatile large = calloc(32, MIB); /* volatile: else the compiler leaves both calls out */
    CHECK(large);
    free(large);
    for (int i = 0; i < 4; i++) CHECK(buffers[i] = malloc(8 * MIB));
    for (int i = 0; i < 4; i++) free(buffers[i]);
    enum { SMALL = 256 }; /* below what the automatic mode takes: glibc's, 16 MiB together */
    char *volatile small[SMALL];
    for (int i = 0; i < SMALL; i++) CHECK(small[i] = malloc(64 << 10));
    for (int i = 0; i < SMALL; i++) free(small[i]);
    CHECK(!setrlimit(RLIMIT_DATA, &before));
}

/* Memory that was protected when it was freed can be written to when it is malloc's again. */
static void check_protected(void) {
    for (int round = 0; round < 3; round++) {
        char *buffer = malloc(5 * MIB);
        CHECK(buffer);
        memset(buffer, round, 5 * MIB);
        CHECK(!mprotect(buffer, 5 * MIB, round & 1 ? PROT_READ : PROT_NONE));
        free(buffer);
    }
}

/* Buffers of sizes that do not come again take no room from those that do, zeroed ones neither. */
static void check_many_sizes(void) {
    for (int size = 0; size < 40; size++) {
        char *volatile once = size & 1 ? calloc(5 + size, MIB / 2) : malloc((5 + size) * (size_t)MIB / 2);
        CHECK(once);
        free(once);
    }
    one_round(0);
    CHECK(one_round(1) < 9 * (long)MIB / PAGE / 4);
}

int main(int count, char **words) {
    const long pages = 9 * (long)MIB / PAGE;
    time_t end = time(NULL) + MOST_WAIT_S;
    /* Buffers are kept as soon as the scanner runs. */
    while (one_round(1) > pages / 4) CHECK(time(NULL) < end);
    check_limit();
    check_protected();
    check_many_sizes();
    long all = 0;
    for (int round = 0; round < ROUNDS; round++) {
        all += one_round(round);
        check_zeros();
    }
    printf("%ld\n", all);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        check_zeros();
        for (int round = 0; round < 3; round++) one_round(round);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("at rest");
    fflush(stdout);
    if (count > 1 && !strcmp(words[1], "busy")) {
        char *changing = malloc(MIB);
        CHECK(changing);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        for (int round = 0; poll(&input, 1, 100) == 0; round++) memset(changing, round, MIB);
        free(changing);
    }
    getchar();
    puts("done");
    return 0;
}
