/* Two threads, ROUNDS each. threads MODE ROUNDS:
 *   apart   each walks and writes 8 KiB of its own
 *   line    both add to one line; lines: each to its own
 *   churn   each allocates and frees objects of 16 to 511 bytes at random
 *   relay   one allocates and writes objects, the other reads and frees them */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 1024, SLOTS = 1024, RING = 256 };

static long rounds;
static _Alignas(64) _Atomic long line[16];
static _Alignas(64) _Atomic(unsigned char *) ring[RING];

static unsigned next(unsigned long *state) {
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return *state >> 33;
}

static long apart(int self) {
    static _Alignas(64) long words[2][WORDS];
    long sum = 0;
    for (long round = 0; round < rounds; round++) {
        long *word = &words[self][round % WORDS];
        *word += round;
        sum += *word % 7;
    }
    return sum;
}

static long add_to(_Atomic long *own) {
    for (long round = 0; round < rounds; round++) atomic_fetch_add(own, 1);
    return 0;
}

static unsigned char *make(unsigned long *state, long round, size_t *size) {
    *size = 16 + next(state) % 496;
    unsigned char *object = malloc(*size);
    if (!object) abort();
    return memset(object, (int)round, *size < 64 ? *size : 64);
}

static long churn(int self) {
    unsigned char **slots = calloc(SLOTS, sizeof *slots);
    unsigned long state = self + 1;
    long sum = 0;
    for (long round = 0; round < rounds; round++) {
        unsigned slot = next(&state) % SLOTS;
        size_t size;
        free(slots[slot]);
        slots[slot] = make(&state, round, &size);
        sum += slots[slot][size / 64];
    }
    for (int slot = 0; slot < SLOTS; slot++) free(slots[slot]);
    free(slots);
    return sum;
}

/* The other thread may have to run on this core. */
static void wait_a_little(int *tries) {
    if (++*tries % 64 == 0) sched_yield();
    __builtin_ia32_pause();
}

static long relay(int self) {
    unsigned long state = 1;
    long sum = 0;
    for (long round = 0; round < rounds; round++) {
        _Atomic(unsigned char *) *place = &ring[round % RING];
        size_t size;
        unsigned char *object = self == 0 ? make(&state, round, &size) : NULL;
        for (int tries = 0; (atomic_load(place) == NULL) != (self == 0);) wait_a_little(&tries);
        if (self == 1) sum += (object = atomic_load(place))[15];
        atomic_store(place, self == 0 ? object : NULL);
        if (self == 1) free(object);
    }
    return sum;
}

static const char *mode;

static void *work(void *number) {
    int self = number != NULL;
    long sum = 0;
    if (strcmp(mode, "apart") == 0) sum = apart(self);
    if (strcmp(mode, "line") == 0) sum = add_to(&line[self]);
    if (strcmp(mode, "lines") == 0) sum = add_to(&line[8 * self]);
    if (strcmp(mode, "churn") == 0) sum = churn(self);
    if (strcmp(mode, "relay") == 0) sum = relay(self);
    return (void *)sum;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    mode = words[1];
    rounds = atol(words[2]);
    pthread_t other;
    void *its_sum;
    if (pthread_create(&other, NULL, work, (void *)1)) return 1;
    long sum = (long)work(NULL);
    if (pthread_join(other, &its_sum)) return 1;
    printf("%s: %ld rounds each, sum %ld, counted %ld\n", mode, rounds, sum + (long)its_sum, line[0] + line[1] + line[8]);
    return 0;
}
