/* The library on a kernel with UPM: two processes advise memory that is equal in part, and share it; a write and
 * a re-advice later they still have their own contents; unadvising makes the pages private again. Run by
 * kernel/tests in a VM. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mayfly_merge.h"

enum { PAGES = 2048, PAGE = 4096, OWN = PAGES / 4 };
#define MUST(condition)                                                                             \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            printf("FAILED line %d: %s: %s; %s\n", __LINE__, #condition, strerror(errno), mayfly_merge_error()); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static long counter(const char *name) {
    char path[64], line[32] = "";
    snprintf(path, sizeof path, "/sys/kernel/mm/%s", name);
    FILE *file = fopen(path, "r");
    MUST(file != NULL);
    MUST(fgets(line, sizeof line, file) != NULL);
    fclose(file);
    return atol(line);
}

/* The first OWN pages are this process's, the others are the same in all processes; a word a page is `version`. */
static uint64_t word(int process, long page, long at, int version) {
    uint64_t seed = (page < OWN ? (uint64_t)process << 40 : 0) + page * 512 + at + 1;
    return at == 7 ? version : seed * 0x9E3779B97F4A7C15u;
}

static void fill(uint64_t *memory, int process) {
    for (long page = 0; page < PAGES; page++)
        for (long at = 0; at < 512; at++) memory[page * 512 + at] = word(process, page, at, 0);
}

static void check(const uint64_t *memory, int process, int version) {
    for (long page = 0; page < PAGES; page++)
        for (long at = 0; at < 512; at++) MUST(memory[page * 512 + at] == word(process, page, at, page % 3 ? 0 : version));
}

static void instance(int process, int ready, int go) {
    uint64_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char byte = 0;
    MUST(memory != MAP_FAILED);
    fill(memory, process);
    MUST(strcmp(mayfly_merge_path(), "kernel") == 0);
    MUST(mayfly_advise(memory, PAGES * PAGE, 0) == 0);
    struct mayfly_merge_stats stats;
    MUST(mayfly_merge_stats(&stats, sizeof stats) == 0 && stats.path == MAYFLY_PATH_KERNEL && stats.pages == PAGES);
    check(memory, process, 0);
    MUST(write(ready, &byte, 1) == 1 && read(go, &byte, 1) == 1); /* the other has advised too; it is measured */
    for (long page = 0; page < PAGES; page += 3) memory[page * 512 + 7] = 1;
    check(memory, process, 1);
    MUST(mayfly_advise(memory, PAGES * PAGE, 0) == 0);
    check(memory, process, 1);
    MUST(write(ready, &byte, 1) == 1 && read(go, &byte, 1) == 1);
    MUST(mayfly_unadvise(memory, PAGES * PAGE) == 0);
    check(memory, process, 1);
    MUST(mayfly_advise((char *)memory + 1, PAGE, 0) == -1 && errno == EINVAL);
    int shared = MAP_SHARED | MAP_ANONYMOUS;
    void *not_private = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, shared, -1, 0);
    MUST(mayfly_advise(not_private, PAGE, 0) == -1 && errno == ENOTSUP);
    MUST(munmap(memory, PAGES * PAGE) == 0 && mayfly_advise(memory, PAGE, 0) == -1 && errno == ENOMEM);
    exit(0);
}

int main(void) {
    enum { INSTANCES = 4 };
    int ready[2], go[2];
    char byte = 0;
    long before = counter("ksm/pages_sharing");
    MUST(pipe(ready) == 0 && pipe(go) == 0);
    for (int process = 0; process < INSTANCES; process++)
        if (fork() == 0) instance(process + 1, ready[1], go[0]);
    for (int round = 0; round < 2; round++) {
        for (int process = 0; process < INSTANCES; process++) MUST(read(ready[0], &byte, 1) == 1);
        long shared = counter("ksm/pages_sharing") - before;
        printf("round %d: %ld pages share another's, of at most %d\n", round, shared, (INSTANCES - 1) * (PAGES - OWN));
        MUST(shared == (INSTANCES - 1) * (PAGES - OWN));
        for (int process = 0; process < INSTANCES; process++) MUST(write(go[1], &byte, 1) == 1);
    }
    for (int process = 0; process < INSTANCES; process++) {
        int status;
        MUST(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int tries = 0; counter("upm/entries") != 0 && tries < 3000; tries++) usleep(100000);
    MUST(counter("upm/entries") == 0 && counter("ksm/pages_sharing") == before);
    printf("ok: the library merges by the kernel\n");
    return 0;
}
