// In a memory cgroup that is nearly full the heap reuses any free cell before it takes a new page, whatever
// the call site: beyond that limit the kernel kills the program before malloc can fail.
// variants: started in a cgroup of its own
#include "check.h"

enum { SIZE = 1000, ROUNDS = 8, ONE_IN = 16 };

// Eight call sites.
#define SITE(n) __attribute__((noinline)) static char *from_##n(void) { return opaque(malloc(opaque_size(SIZE + 0 * n))); }
SITE(0) SITE(1) SITE(2) SITE(3) SITE(4) SITE(5) SITE(6) SITE(7)
static char *(*const sites[ROUNDS])(void) = {from_0, from_1, from_2, from_3, from_4, from_5, from_6, from_7};

int main(int count, char **arguments) {
    CHECK(count == 2, "usage: cgroup_limit MIB_TO_HOLD");
    const size_t objects = MIB(strtoul(arguments[1], NULL, 10)) / SIZE;
    char **all = malloc(objects * sizeof *all);
    for (size_t i = 0; i < objects; i++) {
        fill(all[i] = sites[0](), SIZE, i);
    }
    for (int round = 1; round < ROUNDS; round++) {
        for (size_t i = round; i < objects; i += ONE_IN) free(all[i]);
        for (size_t i = round; i < objects; i += ONE_IN) fill(all[i] = sites[round](), SIZE, i);
    }
    for (size_t i = 0; i < objects; i++) expect(all[i], SIZE, i, "at the end");
    printf("%ld KiB for %zu\n", resident_bytes() / 1024, objects * SIZE / 1024);
    return 0;
}
