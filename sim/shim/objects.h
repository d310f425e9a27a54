/* malloc and free on Memento's instructions, to be compiled into each function of that name in a program: malloc itself,
 * C++'s operators. So a caller gets to the instruction by one call, as the paper has it: "the simulator replaces calls" (§5). */
#ifndef MEMENTO_OBJECTS_H
#define MEMENTO_OBJECTS_H

#include "hardware.h"
#include "software.h"

static inline void *object_in_software(void *ignored, size_t size) {
    (void)ignored;
    return beneath_malloc(size);
}

static inline __attribute__((always_inline)) void *object_allocate(size_t size) {
    return size <= LARGEST_BYTES ? hardware_allocate_aligned(size, object_in_software, NULL) : beneath_malloc(size);
}

static inline __attribute__((always_inline)) void object_free(void *object) {
    if (in_region(object)) hardware_free(object);
    else beneath_free(object);
}

#endif
