/* Works, marks by a system call that it is to be timed, works a little, marks that it counts from now on, and works again: the
 * simulator counts the last part only. */
#include <unistd.h>

static void work(long turns) {
    for (volatile long turn = 0; turn < turns; turn++) {}
}

int main(void) {
    work(50000000);
    getpgid(0x4d4d0003);
    work(1000);
    getpgid(0x4d4d0001);
    work(100000);
    return 0;
}
