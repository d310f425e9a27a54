// Under the auto library: waits for a signal that none of its threads handles in another way, as servers do
// that end cleanly.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int threads(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    int count = 0;
    while (fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &count);
    fclose(file);
    return count;
}

int main(void) {
    sigset_t set;
    memset(malloc(24 << 20), 1, 24 << 20);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    while (threads() < 2) usleep(1000);
    kill(getpid(), SIGTERM);
    struct timespec most = {10, 0};
    if (sigtimedwait(&set, NULL, &most) != SIGTERM) {
        fprintf(stderr, "signals: the signal did not arrive: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
