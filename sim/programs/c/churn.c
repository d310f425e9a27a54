// Allocates and frees small objects in the patterns of §2.2: most die within 16 allocations of their size, some live long.
// churn ROUNDS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHORT = 8, LONG = 4096 };

static uint64_t state = 1;
static uint64_t number(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static uint64_t *make(uint64_t words) {
    uint64_t *object = malloc(words * 8);
    if (!object) abort();
    object[0] = words;
    for (uint64_t i = 1; i < words; i++) object[i] = words * i;
    return object;
}

static uint64_t check(uint64_t *object) {
    uint64_t words = object[0], sum = 0;
    for (uint64_t i = 1; i < words; i++) sum += object[i];
    if (sum != words * (words * (words - 1) / 2)) abort();
    free(object);
    return sum;
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000, sum = 0;
    uint64_t *brief[SHORT] = {0}, **lasting = calloc(LONG, sizeof *lasting);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t slot = round % SHORT;
        if (brief[slot]) sum += check(brief[slot]);
        brief[slot] = make(2 + number(round % 16 == 0 ? 120 : 14));
        if (round % 4 == 0) {
            uint64_t place = number(LONG);
            if (lasting[place]) sum += check(lasting[place]);
            lasting[place] = make(2 + number(30));
        }
    }
    for (int i = 0; i < SHORT; i++)
        if (brief[i]) sum += check(brief[i]);
    for (int i = 0; i < LONG; i++)
        if (lasting[i]) sum += check(lasting[i]);
    free(lasting);
    printf("churn: %llu rounds, sum %llu\n", (unsigned long long)rounds, (unsigned long long)sum);
}
