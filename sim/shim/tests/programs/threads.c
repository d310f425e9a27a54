// Forty threads, one after the other and side by side, hand objects to each other and free them; some fork meanwhile.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 40, SLOTS = 512, ROUNDS = 6000 };

static _Atomic(uint64_t *) shared[SLOTS];

static void check(const uint64_t *object) {
    for (uint64_t i = 1; i < object[0]; i++)
        if (object[i] != object[0] * 77 + i) abort();
}

static uint64_t *make(uint64_t words) {
    uint64_t *object = malloc(words * 8);
    object[0] = words;
    for (uint64_t i = 1; i < words; i++) object[i] = words * 77 + i;
    return object;
}

static void *work(void *argument) {
    unsigned long state = (uintptr_t)argument * 7919 + 1;
    for (int round = 0; round < ROUNDS; round++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t *mine = make(1 + (state >> 33) % 80);
        uint64_t *other = __atomic_exchange_n((uint64_t **)&shared[(state >> 45) % SLOTS], mine, __ATOMIC_SEQ_CST);
        if (other) {
            check(other);
            free(other);
        }
        if (round == ROUNDS / 2 && (uintptr_t)argument % 8 == 0) {
            pid_t child = fork();
            if (child == 0) {
                for (int i = 0; i < SLOTS; i++)
                    if (shared[i]) free((void *)shared[i]); /* its parent's objects */
                for (int i = 0; i < 1000; i++) free(make(1 + i % 80));
                _exit(0);
            }
            int status;
            if (waitpid(child, &status, 0) != child || status != 0) abort();
        }
    }
    return NULL;
}

int main(void) {
    for (int wave = 0; wave < 3; wave++) {
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], NULL, work, (void *)(i + 1))) abort();
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < SLOTS; i++) free((void *)shared[i]);
    puts("well");
}
