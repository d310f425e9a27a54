// Freed memory returns to the system: after 384 MiB of objects of all sizes are freed, little stays resident.
#include "check.h"

enum { OBJECTS = 1 << 20 };
static void *objects[OBJECTS];

int main(void) {
    uint64_t random = 11;
    for (int round = 0; round < 2; round++) {
        size_t live = 0;
        int count = 0;
        while (live < MIB(384) && count < OBJECTS) {
            size_t size = 1 + next_random(&random) % ((size_t)1 << (6 + next_random(&random) % 12));
            objects[count] = malloc(size);
            CHECK(objects[count], "malloc(%zu)", size);
            memset(objects[count++], 1, size);
            live += size;
        }
        long peak = resident_bytes();
        CHECK(peak < (long)(live + live / 2), "%zu live bytes take %ld resident", live, peak);
        for (int i = 0; i < count; i++) {  // in a random order
            int j = i + (int)(next_random(&random) % (uint64_t)(count - i));
            void *p = objects[j];
            objects[j] = objects[i];
            free(p);
        }
        malloc_trim(0);
        long rest = resident_bytes();
        CHECK(rest < (long)MIB(64), "round %d: %ld bytes resident after all was freed (peak %ld)", round, rest, peak);
    }
    return 0;
}
