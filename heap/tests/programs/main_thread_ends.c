// The first thread ends before the others: the process ends with the last of the program's own threads,
// whatever threads the heap has.
#include "check.h"
#include <pthread.h>

static void *worker(void *argument) {
    usleep(200000);
    free(opaque(malloc(100)));
    return argument;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, worker, NULL) == 0, "thread");
    pthread_detach(thread);
    alarm(60);
    pthread_exit(NULL);
}
