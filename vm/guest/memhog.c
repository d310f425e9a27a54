// memhog MIB [CHURN_MIB]: the paper's micro-benchmark (HotMem §5.5). Touches MIB of memory in chunks, with a short rest
// after each, so that several of them running at one time interleave their pages in memory; prints `filled MIB`; and holds
// it. With CHURN_MIB it goes on freeing and touching random chunks of that many MiB, and keeps its CPU busy.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK = 256 << 10, PAGE = 4096, REST_US = 100 };

static void touch(char *start, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE)
        start[at] = 1;
}

int main(int count, char **words) {
    size_t bytes = count > 1 ? strtoul(words[1], 0, 10) << 20 : 0;
    size_t churn = count > 2 ? strtoul(words[2], 0, 10) << 20 : 0;
    if (bytes == 0 || churn > bytes || count > 3) {
        fprintf(stderr, "usage: memhog MIB [CHURN_MIB]\n");
        return 2;
    }
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("memhog: mmap");
        return 1;
    }
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < bytes; at += CHUNK) {
        touch(memory + at, CHUNK);
        usleep(REST_US);
    }
    printf("filled %zu\n", bytes >> 20);
    fflush(stdout);
    if (churn == 0)
        for (;;)
            pause();
    unsigned seed = getpid();
    for (;;) {
        char *start = memory + (bytes - churn) + (size_t)rand_r(&seed) % (churn / CHUNK) * CHUNK;
        madvise(start, CHUNK, MADV_DONTNEED);
        touch(start, CHUNK);
    }
}
