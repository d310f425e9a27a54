// flags: -ldl
// needs: plugin
// dlopen and dlclose, hundreds of times and from several threads, of a library that allocates in
// constructors, in thread_local objects and in destructors; its objects outlive it.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static const char *path;

static void *load_and_unload(void *argument) {
    char *kept[100];
    int rounds = (int)(intptr_t)argument;
    for (int i = 0; i < rounds; i++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        CHECK(library, "%s", dlerror());
        void *(*object)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_object");
        long (*words)(void) = (long (*)(void))dlsym(library, "plugin_words");
        CHECK(object && words && words() == 600, "the plug-in's own objects");
        kept[i % 100] = object(100 + (size_t)i * 10);
        dlclose(library);
        CHECK(kept[i % 100][50] == 7, "an object of a library that was unloaded");
        free(kept[i % 100]);
        CHECK(dlopen("/nonexistent/library.so", RTLD_NOW) == NULL && dlerror(), "dlopen of nothing");
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc > 1, "usage: dlopen_plugins PLUGIN.so");
    path = argv[1];
    load_and_unload((void *)200);
    for (int round = 0; round < 10; round++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, load_and_unload, (void *)25);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    dlopen(path, RTLD_NOW);  // and once left open until exit
    return 0;
}
