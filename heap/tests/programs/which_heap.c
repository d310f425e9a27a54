// flags: -ldl
// variants: test_loading.py starts this program in several ways
// Prints the library of malloc and the kernel's AT_SECURE, after using the heap in threads.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/auxv.h>

static void *use(void *none) {
    (void)none;
    for (size_t size = 1; size < MIB(8); size *= 2) {
        char *p = malloc(size), *q = calloc(2, size);
        fill(p, size, 1);
        p = realloc(p, size + 9);
        expect(p, size, 1, "reallocated");
        free(p);
        free(q);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, use, NULL);
    use(NULL);
    pthread_join(thread, NULL);
    Dl_info info;
    CHECK(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info), "dladdr");
    long (*counted)(void) = (long (*)(void))dlsym(RTLD_DEFAULT, "counted_calls");
    printf("malloc from %s\nsecure %ld\ncounted %ld\n", info.dli_fname, (long)getauxval(AT_SECURE), counted ? counted() : 0);
    return 0;
}
