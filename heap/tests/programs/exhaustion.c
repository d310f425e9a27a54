// Under a limit on addresses malloc hands out every free cell before it fails, whatever the call site and the
// cells' earlier contents; freed memory leaves addresses for a large object or a thread.
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>

enum { MOST = 400000, SIZE = 5000, LIMIT_MIB = 300 };
static char *objects[MOST];

__attribute__((noinline)) static void *get(size_t size) { return opaque(malloc(opaque_size(size))); }
__attribute__((noinline)) static void *get_elsewhere(size_t size) { return opaque(malloc(opaque_size(size))); }
static void *nothing(void *argument) { return argument; }

static long mapped_mib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1, "statm");
    fclose(file);
    return pages / 256;
}

// Allocates `size` bytes in the empty places; returns how many succeeded.
static size_t refill(size_t count, void *(*from)(size_t), size_t size) {
    size_t had = 0;
    for (size_t i = 0; i < count; i++) {
        if (objects[i] || !(objects[i] = from(size))) continue;
        fill(objects[i], size, i);
        had++;
    }
    return had;
}

static size_t free_every_second(size_t count) {
    size_t freed = 0;
    for (size_t i = 0; i < count; i += 2, freed++) {
        free(objects[i]);
        objects[i] = NULL;
    }
    return freed;
}

int main(void) {
    struct rlimit limit = {MIB(LIMIT_MIB), MIB(LIMIT_MIB)};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    size_t count = 0;
    while (count < MOST && (objects[count] = get(SIZE))) fill(objects[count], SIZE, count), count++;
    CHECK(count < MOST && count > 20000, "%zu objects of %d bytes in %d MiB", count, SIZE, LIMIT_MIB);
    size_t freed = free_every_second(count), had = refill(count, get, SIZE);
    CHECK(had >= freed, "the same site: %zu of %zu", had, freed);
    freed = free_every_second(count), had = refill(count, get_elsewhere, SIZE);
    CHECK(had >= freed, "another site: %zu of %zu", had, freed);
    freed = free_every_second(count), had = refill(count, get_elsewhere, SIZE / 2);
    CHECK(had >= freed, "half the size, in cells that are larger: %zu of %zu", had, freed);
    for (size_t i = 1; i < count; i += 2) expect(objects[i], SIZE, i, "at the end");
    for (size_t i = 0; i < count; i++) free(objects[i]);

    void *large = get(MIB(30));
    CHECK(large, "30 MiB when all is freed; %ld MiB are mapped", mapped_mib());
    free(large);
    CHECK(mapped_mib() < LIMIT_MIB / 2, "%ld MiB are mapped when all is freed", mapped_mib());
    pthread_t thread;
    int result = pthread_create(&thread, NULL, nothing, NULL);
    CHECK(result == 0, "a thread: %s", strerror(result));
    pthread_join(thread, NULL);
    return 0;
}
