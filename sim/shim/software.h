/* The software allocator beneath: the next malloc after this library in the order of symbols (jemalloc if that is
 * preloaded too, else the C library's). A call of these is charged as the program's own call of that allocator. */
#ifndef MEMENTO_SOFTWARE_H
#define MEMENTO_SOFTWARE_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

void *beneath_malloc(size_t size);
void beneath_free(void *object);
void *beneath_calloc(size_t many, size_t size);
void *beneath_realloc(void *object, size_t size);
int beneath_posix_memalign(void **result, size_t alignment, size_t size);
void *beneath_memalign(size_t alignment, size_t size);
void *beneath_valloc(size_t size);
void *beneath_pvalloc(size_t size);
size_t beneath_malloc_usable_size(void *object);

#pragma GCC visibility pop

#endif
