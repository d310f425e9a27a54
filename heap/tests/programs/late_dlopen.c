// flags: -ldl
// arguments: {lib}
// A program on another heap opens the heap's library with dlopen: it works separately or is refused, and
// never disturbs.
#include "check.h"
#include <dlfcn.h>

int main(int argc, char **argv) {
    if (argc < 2) return 0;
    char *before = malloc(1000);
    fill(before, 1000, 1);
    for (int i = 0; i < 5; i++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            CHECK(strstr(dlerror(), "TLS"), "refused for another reason");
            return 0;
        }
        void *(*its_malloc)(size_t) = (void *(*)(size_t))dlsym(library, "malloc");
        void (*its_free)(void *) = (void (*)(void *))dlsym(library, "free");
        char *p = its_malloc(5000);
        fill(p, 5000, 2);
        char *own = malloc(300);
        free(own);
        expect(p, 5000, 2, "from the library opened late");
        its_free(p);
        dlclose(library);
    }
    expect(before, 1000, 1, "made before");
    free(before);
    return 0;
}
