// Threads that replace their own objects, of one range of sizes at a time. Nothing is shared, so memory whose
// contents change was handed out twice. Each range uses another part of the heap: cells, blocks, runs of
// blocks, mappings.
#include "check.h"
#include <pthread.h>

static size_t least, most;

static void *replace(void *argument) {
    enum { KEPT = 50 };
    uint64_t random = (uintptr_t)argument, base = random * 1000;
    void *objects[KEPT] = {0};
    size_t sizes[KEPT];
    for (size_t budget = MIB(300); budget > most + 2000;) {
        uint64_t at = next_random(&random) % KEPT;
        if (objects[at]) {
            expect(objects[at], sizes[at], base + at, "a thread's own object");
            free(objects[at]);
        }
        sizes[at] = least + next_random(&random) % (most - least);
        objects[at] = malloc(sizes[at]);
        CHECK(objects[at], "malloc(%zu)", sizes[at]);
        fill(objects[at], sizes[at], base + at);
        budget -= sizes[at] + 2000;
    }
    for (int i = 0; i < KEPT; i++) free(objects[i]);
    return NULL;
}

int main(void) {
    size_t borders[] = {1, 128, 2000, 8300, 60000, 300000, MIB(5)};
    for (int range = 0; range < 6; range++) {
        least = borders[range];
        most = borders[range + 1];
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, replace, (void *)(i + 1)) == 0, "pthread_create");
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    return 0;
}
