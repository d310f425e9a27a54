// flags: -Wl,-z,lazy
// A program whose IFUNC resolver allocates: it runs while the dynamic linker still relocates the program,
// before any constructor, the heap's own included.
#include "check.h"

static int resolved;
static int implementation(void) { return 5; }
static int (*resolver(void))(void) {
    for (size_t size = 1; size < MIB(4); size *= 5) {
        char *p = malloc(size);
        if (!p) return implementation;
        memset(p, 3, size);
        resolved += p[size - 1];
        free(p);
    }
    return implementation;
}
int chosen(void) __attribute__((ifunc("resolver")));

int main(void) {
    CHECK(chosen() == 5 && resolved == 30, "the resolver did not allocate: %d", resolved);
    return 0;
}
