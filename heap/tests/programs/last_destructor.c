// A destructor that allocates in the last round in which a thread's destructors run
// (PTHREAD_DESTRUCTOR_ITERATIONS): no destructor of the heap runs after it, and still no memory is lost.
// 3,000 threads.
#include "check.h"
#include <limits.h>
#include <pthread.h>

static pthread_key_t key;

static void destructor(void *round) {
    free(malloc(100));
    free(malloc(5000));
    if ((intptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(key, (void *)((intptr_t)round + 1));
}

static void *body(void *none) {
    free(malloc(50));
    pthread_setspecific(key, (void *)1);
    return none;
}

int main(void) {
    free(malloc(1));
    pthread_key_create(&key, destructor);
    long warm = 0;
    for (int i = 0; i < 3000; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, body, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
        if (i == 500) warm = resident_bytes();
    }
    CHECK(resident_bytes() < warm + (long)MIB(16), "resident: %ld bytes after 500 threads, %ld after 3,000", warm, resident_bytes());
    return 0;
}
