// Preload an allocator and run this: exits with 0 if all functions that allocate are that library's and
// work. The one argument is the library's path. C++'s operators may be libstdc++'s, which call the
// library's malloc.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <malloc.h>
#include <new>

static const char *file_of(const char *name) {
    Dl_info found;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    return symbol && dladdr(symbol, &found) ? found.dli_fname : "nowhere";
}

static bool same_file(const char *a, const char *b) {
    char first[4096], second[4096];
    return realpath(a, first) && realpath(b, second) && !strcmp(first, second);
}

static int checked(const char *name, void *object, size_t alignment, size_t bytes) {
    if (!object || uintptr_t(object) % alignment || malloc_usable_size(object) < bytes) {
        fprintf(stderr, "%s: %p is no object of %zu bytes, aligned to %zu\n", name, object, bytes, alignment);
        return 1;
    }
    memset(object, 1, bytes);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    int wrong = 0;
    for (const char *name : {"malloc", "free", "calloc", "realloc", "memalign", "posix_memalign", "aligned_alloc",
                             "malloc_usable_size"})
        if (!same_file(file_of(name), arguments[1])) {
            fprintf(stderr, "%s is of %s\n", name, file_of(name));
            ++wrong;
        }
    for (const char *name : {"_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZnwmSt11align_val_t"})
        if (!same_file(file_of(name), arguments[1]) && !strstr(file_of(name), "libstdc++")) {
            fprintf(stderr, "%s is of %s\n", name, file_of(name));
            ++wrong;
        }
    void *posix = nullptr;
    if (posix_memalign(&posix, 4096, 100)) ++wrong;
    void *all[] = {malloc(100), calloc(10, 10), realloc(malloc(8), 100), aligned_alloc(256, 256), posix};
    const size_t alignments[] = {16, 16, 16, 256, 4096};
    const char *names[] = {"malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign"};
    for (int n = 0; n < 5; ++n) wrong += checked(names[n], all[n], alignments[n], 100);
    for (void *one : all) free(one);
    void *made = ::operator new(100);
    wrong += checked("new", made, 16, 100);
    ::operator delete(made);
    made = ::operator new(100, std::align_val_t(128));
    wrong += checked("aligned new", made, 128, 100);
    ::operator delete(made, std::align_val_t(128));
    return wrong ? 1 : 0;
}
