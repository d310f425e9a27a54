/* A program without any call of the merge library: allocates, waits to be shared, then does what would go wrong
 * if sharing were visible. Prints "at rest" and reads a line before it continues, so that the test can read its
 * memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096 };

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "allocate.c:%d: not so: %s (%s)\n", __LINE__, #what, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static void fill(uint64_t *words, size_t bytes, uint64_t seed) {
    uint64_t x = seed * 0x9E3779B97F4A7C15ull + 1;
    for (size_t i = 0; i < bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
    }
}

static int holds(const uint64_t *words, size_t bytes, uint64_t seed) {
    uint64_t x = seed * 0x9E3779B97F4A7C15ull + 1;
    for (size_t i = 0; i < bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (words[i] != x) return 0;
    }
    return 1;
}

/* C23's: not every C library has it yet. */
extern void free_sized(void *, size_t) __attribute__((weak));

/* Allocates and frees large blocks in every way while the scanner thread scans them. */
static void *churn(void *arg) {
    uint64_t seed = (uintptr_t)arg;
    for (int round = 0; round < 200; round++, seed = seed * 6364136223846793005ull + 1) {
        size_t bytes = (seed >> 40) % (3 * MIB) / 16 * 16 + MIB;
        uint64_t *block;
        switch (seed >> 20 & 3) {
        case 0: block = malloc(bytes); break;
        case 1:
            block = calloc(bytes / 16, 16);
            for (size_t i = 0; i < bytes / 8; i++) CHECK(block[i] == 0);
            break;
        case 2: CHECK(!posix_memalign((void **)&block, 256, bytes)); break;
        default: block = aligned_alloc(64, bytes / 64 * 64 + 64);
        }
        CHECK(block && malloc_usable_size(block) >= bytes);
        fill(block, bytes, seed);
        if (seed & 1) {
            size_t other = (bytes / 2 + (seed >> 30) % bytes) / 16 * 16;
            block = seed & 2 ? reallocarray(block, other / 16, 16) : realloc(block, other);
            CHECK(block && holds(block, other < bytes ? other : bytes, seed));
            bytes = other;
        } else {
            CHECK(holds(block, bytes, seed));
        }
        if (free_sized && seed & 4) free_sized(block, bytes);
        else free(block);
    }
    return NULL;
}

int main(int count, char **words) {
    size_t bytes = (count > 1 ? atoi(words[1]) : 16) * (size_t)MIB;
    uint64_t *common = malloc(bytes), *dropped = malloc(bytes), *locked = malloc(4 * MIB), *freed = malloc(bytes);
    CHECK(common && dropped && locked && freed);
    CHECK((uintptr_t)common % PAGE == 0);
    volatile size_t too_many = SIZE_MAX / 2;
    errno = 0;
    CHECK(!reallocarray(NULL, too_many, 3) && errno == ENOMEM);
    fill(common, bytes, 1), fill(dropped, bytes, 2), fill(locked, 4 * MIB, 3), fill(freed, bytes, 4);
    printf("at rest\n");
    fflush(stdout);
    CHECK(getchar() == '\n');

    CHECK(holds(common, bytes, 1) && holds(dropped, bytes, 2) && holds(locked, 4 * MIB, 3));
    /* A range inside a shared block, not aligned to the scanner's parts: zeros, as MADV_DONTNEED promises. */
    char *middle = (char *)dropped + 100 * PAGE;
    CHECK(!madvise(middle, 50 * PAGE, MADV_DONTNEED));
    for (int i = 0; i < 50 * PAGE; i++) CHECK(middle[i] == 0);
    CHECK(middle[-1] || middle[-2] || middle[-3]);
    CHECK(!mlock(locked, 4 * MIB) || errno == ENOMEM || errno == EPERM);
    CHECK(holds(locked, 4 * MIB, 3));
    free(freed);

    fill(common, bytes / 2, 9);
    CHECK(holds(common, bytes / 2, 9));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(holds(common, bytes / 2, 9));
        fill(common, bytes, 5);
        free(dropped);
        churn((void *)77);
        CHECK(holds(common, bytes, 5));
        _exit(0);
    }
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, churn, (void *)(i + 1)));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(holds(common, bytes / 2, 9));
    printf("done\n");
    return 0;
}
