/* Allocates aligned objects, whose addresses posix_memalign stores in memory, and frees each. */
#include <stdlib.h>

int main(int argc, char **argv) {
    long turns = argc > 1 ? atol(argv[1]) : 1000;
    void *objects[16] = {0};
    for (long turn = 0; turn < turns + 16; turn++) {
        free(objects[turn % 16]);
        objects[turn % 16] = NULL;
        if (turn < turns && posix_memalign(&objects[turn % 16], 64, 100 + turn % 300)) return 1;
    }
    return 0;
}
