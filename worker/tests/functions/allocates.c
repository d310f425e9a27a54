/* Prints which library its malloc is from, and its preloads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    Dl_info about = {0};
    void *function = dlsym(RTLD_DEFAULT, "malloc");
    if (function) dladdr(function, &about);
    for (size_t bytes = 16; bytes < 1 << 20; bytes *= 2) {
        char *block = malloc(bytes);
        if (!block) return 1;
        memset(block, 1, bytes);
        free(block);
    }
    const char *preloaded = getenv("LD_PRELOAD");
    const char *pages = getenv("MAYFLY_HEAP_PAGES");
    printf("{\"malloc\": \"%s\", \"preloaded\": \"%s\", \"pages\": \"%s\", \"theirs\": %d}\n",
           about.dli_fname ? about.dli_fname : "", preloaded ? preloaded : "", pages ? pages : "",
           dlsym(RTLD_DEFAULT, "of_the_image") != NULL);
    return 0;
}
