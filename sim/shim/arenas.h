/* The arenas in the guest's memory: the hardware's work on them, done in software. */
#ifndef MEMENTO_ARENAS_H
#define MEMENTO_ARENAS_H

#include <stddef.h>
#include <stdint.h>

enum outcome { DONE, NOT_AN_OBJECT, NO_ARENA, DOUBLE_FREE };

/* Reserves the region and marks it for the simulator. False: this process must allocate in software. Operations that free into
 * several lanes at once need one lock for all of them. */
int arenas_open(int eager, int one_lock, int whole_pages);

/* After a fork: pages that the child shares are copied now, and not, by page faults, when this process writes to them. */
void arenas_unshare(void);

/* Returns the region's memory to the kernel; reads of it return zeroes. */
void arenas_close(void);

/* Holds a lane's lock for an operation on it and for the mark that closes the operation, so that the simulator sees the
 * operations in the order in which they were done; its result is for arenas_release. */
int arenas_hold(unsigned lane);
void arenas_release(unsigned lane, int held);

/* Under the lane's lock: obj-alloc of a class; NULL when the class's addresses or the memory are used up. */
void *arenas_allocate(unsigned lane, unsigned class);

/* Under the lock of the object's lane: obj-free of an address in the region. */
enum outcome arenas_free(void *object);

/* The lane whose arena an address is in. */
unsigned arenas_lane(const void *object);

/* Around fork: all locks, in order. */
void arenas_lock_all(void);
void arenas_unlock_all(void);

#endif
