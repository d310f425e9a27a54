/* The arenas in the guest's memory: what the hardware would do to them, done in software. */
#ifndef MEMENTO_ARENAS_H
#define MEMENTO_ARENAS_H

#include <stddef.h>
#include <stdint.h>

enum outcome { DONE, NOT_AN_OBJECT, NO_ARENA, DOUBLE_FREE };

/* Reserves the region and tells the simulator. False: this process must allocate in software. */
int arenas_open(int eager);

/* obj-alloc of a class by a lane; NULL when the class's addresses or the memory are used up. */
void *arenas_allocate(unsigned lane, unsigned class);

/* obj-free of an address in the region, whoever allocated it. */
enum outcome arenas_free(void *object);

/* Size of the object at an address in the region; 0 if none is allocated there. */
size_t arenas_size(const void *object);

/* Whose arena an address is in. */
unsigned arenas_lane(const void *object);

/* Around fork: all locks, in order. */
void arenas_lock_all(void);
void arenas_unlock_all(void);

#endif
