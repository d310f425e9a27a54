/* Mayfly's heap: its functions beyond malloc. Link with -lmayfly_heap, or find them with dlsym if the library
   is preloaded. */
#ifndef MAYFLY_HEAP_H
#define MAYFLY_HEAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lifetime classes: an object of a class is expected to die within this time. */
enum mayfly_lifetime_class {
    MAYFLY_10MS, MAYFLY_100MS, MAYFLY_1S, MAYFLY_10S, MAYFLY_100S, MAYFLY_1000S, MAYFLY_FOREVER
};

/* As malloc, for a program that knows how long the object will live. Freed with free. */
void *mayfly_malloc(size_t size, int lifetime_class);

/* Writes the heap's statistics, one JSON object, with a final NUL if it fits; returns the bytes needed without it. */
int mayfly_heap_stats(char *buffer, size_t length);

/* Notes that the program has started. With MAYFLY_HEAP_CLOCK=settled the heap's clock stands still until this
   call, so that instances of a program that start alike have the same memory layout. */
void mayfly_heap_settled(void);

/* Makes the heap's clock show ns nanoseconds since its start until it is set again, and runs the heap's
   maintenance up to that time; 0 returns to real time. */
void mayfly_heap_set_clock(uint64_t ns);

#ifdef __cplusplus
}
#endif
#endif
