// 256 threads alive at once that exchange objects, 5,000 one after another with bounded memory, detached
// ones, and a program whose main thread ends first.
#include "check.h"
#include <pthread.h>
#include <semaphore.h>

enum { ALIVE = 256, EACH = 200 };
static pthread_barrier_t barrier;
static unsigned char *shared[ALIVE][EACH];
static sem_t done;

static size_t size_of(int thread, int i) { return 1 + (size_t)(thread * 131 + i * 977) % (i % 50 ? 700 : 30000); }

static void *one_of_many(void *argument) {
    int me = (int)(intptr_t)argument;
    for (int i = 0; i < EACH; i++) {
        shared[me][i] = malloc(size_of(me, i));
        fill(shared[me][i], size_of(me, i), (uint64_t)(me * EACH + i));
    }
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < EACH; i++) {  // each frees a different thread's object
        int owner = (me + i + 1) % ALIVE;
        expect(shared[owner][i], size_of(owner, i), (uint64_t)(owner * EACH + i), "among 256 threads");
        free(shared[owner][i]);
    }
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void *brief(void *keep) {
    void *objects[60];
    for (int i = 0; i < 60; i++) {
        objects[i] = malloc((size_t)1 << (i % 15));
        memset(objects[i], i, (size_t)1 << (i % 15));
    }
    for (int i = 1; i < 60; i++) free(objects[i]);
    if (keep) return objects[0];
    free(objects[0]);
    sem_post(&done);
    return NULL;
}

static void *after_main(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    for (int i = 0; i < 100000; i++) free(malloc((size_t)i % 9000));
    exit(0);
}

int main(void) {
    pthread_barrier_init(&barrier, NULL, ALIVE);
    static pthread_t threads[ALIVE];
    for (int round = 0; round < 3; round++) {
        for (intptr_t i = 0; i < ALIVE; i++) CHECK(pthread_create(&threads[i], NULL, one_of_many, (void *)i) == 0, "pthread_create");
        for (int i = 0; i < ALIVE; i++) pthread_join(threads[i], NULL);
    }
    long warm = 0;
    for (int i = 0; i < 5000; i++) {
        pthread_t thread;
        void *kept;
        CHECK(pthread_create(&thread, NULL, brief, &barrier) == 0, "pthread_create");
        pthread_join(thread, &kept);
        free(kept);
        if (i == 500) warm = resident_bytes();
    }
    long end = resident_bytes();
    CHECK(end < warm + (long)MIB(16), "resident: %ld bytes after 500 threads, %ld after 5,000", warm, end);

    sem_init(&done, 0, 0);
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (int round = 0; round < 50; round++) {
        pthread_t thread;
        for (int i = 0; i < 20; i++) CHECK(pthread_create(&thread, &detached, brief, NULL) == 0, "pthread_create");
        for (int i = 0; i < 20; i++) sem_wait(&done);
    }
    static pthread_t self, last;
    self = pthread_self();
    pthread_create(&last, NULL, after_main, &self);
    pthread_exit(NULL);
}
