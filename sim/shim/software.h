/* The software allocator beneath: the next malloc after this library in the order of symbols (jemalloc if that is
 * preloaded too, else the C library's). */
#ifndef MEMENTO_SOFTWARE_H
#define MEMENTO_SOFTWARE_H

#include <stddef.h>

void *software_malloc(size_t size);
void software_free(void *object);
void *software_calloc(size_t many, size_t size);
void *software_realloc(void *object, size_t size);
void *software_memalign(size_t alignment, size_t size);
size_t software_usable_size(void *object);

#endif
