// flags: -ldl
// needs: static_tls
// Static TLS runs out: the program loads libraries with initial-exec variables until one is refused; the heap
// still works, in old and in new threads.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static void *use(void *none) {
    (void)none;
    for (size_t size = 1; size < MIB(4); size *= 3) {
        char *p = malloc(size);
        fill(p, size, size);
        expect(p, size, size, "with no static TLS left");
        free(p);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int loaded = 0;
    pthread_t early, late;
    pthread_create(&early, NULL, use, NULL);
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW);
        if (!library) {
            CHECK(strstr(dlerror(), "static TLS"), "refused for another reason");
            break;
        }
        char *(*address)(void) = (char *(*)(void))dlsym(library, "address_of_taken");
        CHECK(*address() == 1, "its own TLS variable");
        loaded++;
        use(NULL);
    }
    CHECK(loaded >= 4 && loaded < argc - 1, "%d of %d libraries loaded: the reserve was not used up, or was gone before", loaded, argc - 1);
    for (int i = 0; i < 20; i++) {
        pthread_create(&late, NULL, use, NULL);
        pthread_join(late, NULL);
    }
    pthread_join(early, NULL);
    use(NULL);
    printf("%d libraries found room\n", loaded);
    return 0;
}
