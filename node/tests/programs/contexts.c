// Allocates in 128 calling contexts until it is killed: in half of them objects that it frees at once, in the others
// objects that live for 20 rounds. Two builds (-DBUILD=1, 2) differ in their build-id only.
#include <stdlib.h>
#include <unistd.h>

volatile int build = BUILD;
static unsigned round;

#define FUNCTION __attribute__((noinline, noclone))
#define ONE(n)                                                        \
    static FUNCTION void allocate##n(void) {                          \
        static char *kept[20][10];                                    \
        for (int i = 0; i < (n % 2 ? 10 : 100); i++) {                \
            char *volatile object = malloc(2000);                     \
            object[0] = (char)n;                                      \
            if (n % 2) {                                              \
                free(kept[round % 20][i]);                            \
                kept[round % 20][i] = object;                         \
            } else                                                    \
                free(object);                                         \
        }                                                             \
    }
#define EIGHT(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7)
#define ALL(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15) f(16)
ALL(EIGHT)

#define CALL(n) allocate##n##0(); allocate##n##1(); allocate##n##2(); allocate##n##3(); \
    allocate##n##4(); allocate##n##5(); allocate##n##6(); allocate##n##7();

int main(void) {
    for (;; round++, usleep(5000)) {
        ALL(CALL)
    }
}
