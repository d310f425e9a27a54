// flags: -ldl
// needs: makes
// Objects pass between a program and a library that was opened with RTLD_DEEPBIND, which finds the C
// library's malloc first; between malloc and __libc_malloc; and from the C library's own heap, found by its
// handle.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static void *(*malloc_of_glibc)(size_t);

static void *frees_objects_of_glibc(void *argument) {
    for (size_t size = 1; size < 300000; size += size / 5 + 1) {
        char *object = malloc_of_glibc(size);
        fill(object, size, size);
        CHECK(malloc_usable_size(object) >= size, "%zu of %zu bytes", malloc_usable_size(object), size);
        if (size % 2) CHECK((object = realloc(object, 2 * size)), "realloc");
        expect(object, size, size, "an object of glibc's heap");
        free(object);
    }
    return argument ? malloc_of_glibc(opaque_size(500)) : NULL;
}

int main(int argc, char **argv) {
    CHECK(argc > 1, "usage: deep_binding LIBRARY.so");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library, "%s", dlerror());
    char *(*made)(size_t) = (char *(*)(size_t))dlsym(library, "made");
    char *(*copy)(const char *) = (char *(*)(const char *))dlsym(library, "copy");
    void (*give_back)(void *) = (void (*)(void *))dlsym(library, "give_back");
    CHECK(made && copy && give_back, "the library's functions");
    for (size_t size = 10; size < MIB(40); size *= 7) {
        free(made(size));
        give_back(malloc(opaque_size(size)));
        char *moved = realloc(made(size), 3 * size);
        CHECK(moved && moved[0] == 7 && moved[size - 1] == 7, "realloc of the library's object");
        give_back(moved);
    }
    char *text = copy("of the library");
    CHECK(!strcmp(text, "of the library"), "%s", text);
    free(text);
    void *none = dlopen("/nonexistent/library.so", RTLD_NOW | RTLD_DEEPBIND);
    CHECK(none == NULL && dlerror(), "dlopen of nothing");

    for (size_t size = 10; size < MIB(40); size *= 7) {
        free(__libc_malloc(size));
        __libc_free(malloc(opaque_size(size)));
        free(__libc_realloc(__libc_calloc(size, 1), 2 * size));
        free(__libc_memalign(64, size));
    }
    __libc_free(NULL);

    void *glibc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(glibc, "%s", dlerror());
    malloc_of_glibc = (void *(*)(size_t))dlsym(glibc, "malloc");
    frees_objects_of_glibc(NULL);
    pthread_t thread;
    void *of_thread = NULL;
    CHECK(pthread_create(&thread, NULL, frees_objects_of_glibc, &thread) == 0, "a thread");
    pthread_join(thread, &of_thread);
    free(of_thread);
    return 0;
}
