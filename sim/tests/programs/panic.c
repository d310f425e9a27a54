/* Makes the guest's kernel panic. */
#include <fcntl.h>
#include <unistd.h>

int main(void) {
    int trigger = open("/proc/sysrq-trigger", O_WRONLY);
    return write(trigger, "c", 1) != 1;
}
