/* Allocates and frees objects of 16 to 511 bytes at random. Prints a sum that depends on all of them; exits with 3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words) {
    enum { SLOTS = 4096 };
    static unsigned char *slots[SLOTS];
    long turns = count > 1 ? atol(words[1]) : 100000;
    unsigned long random = 1, sum = 0;
    for (long turn = 0; turn < turns; turn++) {
        random = random * 6364136223846793005UL + 1442695040888963407UL;
        unsigned slot = (random >> 33) % SLOTS;
        free(slots[slot]);
        size_t size = 16 + (random >> 40) % 496;
        slots[slot] = malloc(size);
        memset(slots[slot], (int)turn, size < 64 ? size : 64);
        sum += slots[slot][size / 64];
    }
    printf("sum %lu\n", sum);
    return 3;
}
