// A program closes every file that it did not open, as daemons do, while a trace is recorded: the heap writes
// nothing into the files that the program opens then.
// flags: -ldl
#include "check.h"
#include <dlfcn.h>
#include <sys/mman.h>

enum { FILES = 16 };

int main(int count, char **arguments) {
    if (!dlsym(RTLD_DEFAULT, "mayfly_heap_stats")) return 0;  // other heaps record nothing
    if (count < 2) {
        setenv("MAYFLY_HEAP_TRACE", "/dev/null", 1);
        execl("/proc/self/exe", arguments[0], "recorded", NULL);
    }
    for (int file = 3; file < 1024; file++) close(file);
    int own[FILES];
    for (int i = 0; i < FILES; i++) CHECK((own[i] = memfd_create("own", 0)) >= 0, "memfd_create");
    for (int i = 0; i < 20000; i++) free(opaque(malloc(opaque_size(100))));
    for (int i = 0; i < FILES; i++) {
        long bytes = lseek(own[i], 0, SEEK_END);
        CHECK(bytes == 0, "%ld bytes are in file %d", bytes, own[i]);
    }
    return 0;
}
