/* libpopulate.so: "we instrumented the software allocators under comparison to pass the flag to mmap" (§6.6). Preloaded, it
 * passes MAP_POPULATE for what an allocator maps: private memory of no file that can be read and written. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    int is_heap = (flags & (MAP_ANONYMOUS | MAP_PRIVATE | MAP_STACK)) == (MAP_ANONYMOUS | MAP_PRIVATE) &&
                  protection == (PROT_READ | PROT_WRITE);
    return (void *)syscall(SYS_mmap, address, length, protection, is_heap ? flags | MAP_POPULATE : flags, file, offset);
}
