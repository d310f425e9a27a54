// A library to preload: interposes functions of the C library, and can delay a call right before its system
// call, as a busy machine does.
// variants: started by the runner
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void (*late_hook)(void);
void *__libc_realloc(void *, size_t);

int madvise(void *at, size_t bytes, int advice) {
    if (late_hook) late_hook();
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

void *mremap(void *old, size_t old_bytes, size_t new_bytes, int flags, ...) {
    va_list list;
    va_start(list, flags);
    void *to = va_arg(list, void *);
    va_end(list);
    if (late_hook) late_hook();
    return (void *)syscall(SYS_mremap, old, old_bytes, new_bytes, flags, to);
}

void *realloc(void *block, size_t bytes) {
    if (late_hook) late_hook();
    return __libc_realloc(block, bytes);
}
