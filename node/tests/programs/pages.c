// Holds memory that is equal in every process with the same seed, and checks that it stays so.
//
//   pages MIB SEED SECONDS    prints "ready", then "good N" at the end or at SIGTERM, or "bad" and exits with 1
//   pages maps                prints its mappings
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4 << 20, WORDS = BLOCK / sizeof(uint64_t) };

static volatile sig_atomic_t ended;
static void end(int signal) { (void)signal; ended = 1; }

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int walk(uint64_t *words, uint64_t seed, int writes) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < WORDS; i++) {
        uint64_t value = next(&state);
        if (writes) words[i] = value;
        else if (words[i] != value) return 0;
    }
    return 1;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "maps")) {
        char line[512];
        FILE *maps = fopen("/proc/self/maps", "r");
        while (maps && fgets(line, sizeof line, maps)) fputs(line, stdout);
        return 0;
    }
    if (count != 4) return 2;
    signal(SIGTERM, end);
    int blocks = atoi(words[1]) / 4, seconds = atoi(words[3]);
    uint64_t seed = strtoul(words[2], 0, 10);
    uint64_t **all = malloc(blocks * sizeof *all);
    for (int i = 0; i < blocks; i++) walk(all[i] = malloc(BLOCK), seed + i, 1);
    printf("ready\n");
    fflush(stdout);
    for (int at = 0; at < seconds * 10 && !ended; at++) {
        usleep(100000);
        if (at % 10 == 0 && !walk(all[at / 10 % blocks], seed + at / 10 % blocks, 0)) {
            printf("bad\n");
            return 1;
        }
    }
    for (int i = 0; i < blocks; i++)
        if (!walk(all[i], seed + i, 0)) {
            printf("bad\n");
            return 1;
        }
    printf("good %d\n", blocks);
    return 0;
}
