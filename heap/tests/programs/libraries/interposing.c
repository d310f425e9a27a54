// library
// flags: -ldl
// A library to be preloaded beside the heap, as libfaketime is: it interposes functions that a heap may use
// inside, and allocates in each. A heap that calls one of them with a lock held waits for itself. madvise and
// mremap are not among them: allocators call these with locks held, and libmayfly_merge.so's allocate nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static __thread int inside;

static void *next(const char *name) {
    if (!inside) {
        inside = 1;
        // Of several sizes: at least one finds no pending cell, and takes a slow path.
        for (size_t size = 16; size < 40000000; size *= 3) free(calloc(1, size));
        inside = 0;
    }
    return dlsym(RTLD_NEXT, name);
}

#define NEXT(name, result, ...) ((result(*)(__VA_ARGS__))next(name))

int clock_gettime(clockid_t clock, struct timespec *time) {
    return NEXT("clock_gettime", int, clockid_t, struct timespec *)(clock, time);
}
int nanosleep(const struct timespec *wanted, struct timespec *left) {
    return NEXT("nanosleep", int, const struct timespec *, struct timespec *)(wanted, left);
}
char *getenv(const char *name) { return NEXT("getenv", char *, const char *)(name); }
long sysconf(int name) { return NEXT("sysconf", long, int)(name); }
pid_t getpid(void) { return NEXT("getpid", pid_t, void)(); }
int close(int fd) { return NEXT("close", int, int)(fd); }
ssize_t read(int fd, void *to, size_t length) { return NEXT("read", ssize_t, int, void *, size_t)(fd, to, length); }
ssize_t write(int fd, const void *from, size_t length) {
    return NEXT("write", ssize_t, int, const void *, size_t)(fd, from, length);
}
ssize_t readlink(const char *path, char *to, size_t length) {
    return NEXT("readlink", ssize_t, const char *, char *, size_t)(path, to, length);
}
int sched_yield(void) { return NEXT("sched_yield", int, void)(); }
int sched_getcpu(void) { return NEXT("sched_getcpu", int, void)(); }
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    return NEXT("mmap", void *, void *, size_t, int, int, int, off_t)(at, length, protection, flags, fd, offset);
}
int munmap(void *at, size_t length) { return NEXT("munmap", int, void *, size_t)(at, length); }
int mprotect(void *at, size_t length, int protection) {
    return NEXT("mprotect", int, void *, size_t, int)(at, length, protection);
}
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return NEXT("open", int, const char *, int, int)(path, flags, mode);
}
long syscall(long number, ...) {
    va_list more;
    long a[6];
    va_start(more, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
    va_end(more);
    return NEXT("syscall", long, long, long, long, long, long, long, long)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int pthread_key_create(unsigned *key, void (*end)(void *)) {
    return NEXT("pthread_key_create", int, unsigned *, void (*)(void *))(key, end);
}
int prctl(int option, ...) {
    va_list more;
    long a[4];
    va_start(more, option);
    for (int i = 0; i < 4; i++) a[i] = va_arg(more, long);
    va_end(more);
    return NEXT("prctl", int, int, long, long, long, long)(option, a[0], a[1], a[2], a[3]);
}
