// Objects outlive their thread: another thread frees them after it has ended; and a thread that only frees
// other threads' objects. 500 rounds of each with bounded memory, so nothing is lost with a thread.
#include "check.h"
#include <pthread.h>

enum { OBJECTS = 2000, ROUNDS = 250 };
static void *objects[OBJECTS];
static size_t sizes[OBJECTS];

static void *allocate_all(void *seed) {
    uint64_t random = (uintptr_t)seed;
    for (int i = 0; i < OBJECTS; i++) {
        sizes[i] = 1 + next_random(&random) % ((size_t)1 << (4 + next_random(&random) % (i % 100 ? 9 : 17)));
        objects[i] = malloc(sizes[i]);
        CHECK(objects[i], "malloc(%zu)", sizes[i]);
        fill(objects[i], sizes[i], i);
    }
    return NULL;
}

static void *free_all(void *step) {
    for (int i = 0; i < OBJECTS; i++) {
        int at = (int)((i * (uintptr_t)step) % OBJECTS);
        expect(objects[at], sizes[at], at, "made by another thread");
        free(objects[at]);
    }
    return NULL;
}

static void in_thread(void *(*body)(void *), uintptr_t argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, (void *)argument) == 0, "pthread_create");
    pthread_join(thread, NULL);
}

int main(void) {
    long warm = 0;
    for (int round = 0; round < ROUNDS; round++) {
        in_thread(allocate_all, round + 1);
        free_all((void *)7);
        allocate_all((void *)(uintptr_t)(round + 5));
        in_thread(free_all, 3);
        in_thread(allocate_all, round + 9);  // and neither of them is this thread
        in_thread(free_all, 11);
        if (round == ROUNDS / 5) warm = resident_bytes();
    }
    long end = resident_bytes();
    CHECK(end < warm + (long)MIB(24), "resident: %ld bytes after a fifth of the rounds, %ld at the end", warm, end);
    return 0;
}
