// A server that forks its worker late: once a sampler has begun to sample it, and so after the sampler has first listed the
// processes.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))

static FUNCTION void parent_allocates(void) {
    for (int i = 0; i < 1000; i++) {
        char *volatile object = malloc(2000);
        free(object);
    }
}

static FUNCTION void worker_allocates(void) {
    for (int i = 0; i < 1000; i++) {
        char *volatile object = malloc(3000);
        free(object);
    }
}

int main(void) {
    char sampler[64];
    snprintf(sampler, sizeof sampler, "/opt/mayfly/control/%d", (int)getpid());
    for (int is_forked = 0;; usleep(5000)) {
        parent_allocates();
        if (!is_forked && !access(sampler, F_OK)) {
            is_forked = 1;
            if (!fork())
                for (;; usleep(5000)) worker_allocates();
        }
    }
}
