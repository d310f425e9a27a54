/* Where things lie in the Memento region: sim/memento/src/layout.rs in C. sim/shim/tests/run compares the two
 * by replaying this library's journal through the model. */
#ifndef MEMENTO_LAYOUT_H
#define MEMENTO_LAYOUT_H

#include <stdint.h>

enum {
    CLASSES = 64,
    CLASS_STEP_BYTES = 8,
    LARGEST_BYTES = CLASSES * CLASS_STEP_BYTES,
    OBJECTS = 256,
    HEADER_BYTES = 64,
    PAGE_BYTES = 4096,
    LANES = 32,
    CLASS_SHIFT = 26,
    LANE_SHIFT = CLASS_SHIFT + 6,
};

#define REGION_START UINT64_C(0x600000000000)
#define REGION_BYTES ((uint64_t)LANES << LANE_SHIFT)

static inline uint64_t object_bytes(unsigned class) { return (class + 1) * (uint64_t)CLASS_STEP_BYTES; }

static inline uint64_t arena_bytes(unsigned class) {
    return (HEADER_BYTES + OBJECTS * object_bytes(class) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* How many of an arena's last objects have no room: its header has their place, if arenas are whole pages. */
static inline unsigned absent_objects(unsigned class, int whole_pages) {
    uint64_t bytes = object_bytes(class);
    uint64_t room = ((OBJECTS * bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES - HEADER_BYTES) / bytes;
    return whole_pages && room < OBJECTS ? (unsigned)(OBJECTS - room) : 0;
}

/* A class's arenas begin some pages into its range. */
static inline uint64_t stagger(unsigned class) { return class / 2 * (uint64_t)PAGE_BYTES; }

static inline uint64_t class_start(unsigned class, unsigned lane) {
    return REGION_START + ((uint64_t)lane << LANE_SHIFT | (uint64_t)class << CLASS_SHIFT) + stagger(class);
}

static inline uint64_t class_end(unsigned class, unsigned lane) {
    return class_start(class, lane) - stagger(class) + (UINT64_C(1) << CLASS_SHIFT);
}

static inline int in_region(const void *address) { return (uint64_t)address - REGION_START < REGION_BYTES; }

/* Of the class that an address in the region belongs to. */
static inline uint64_t class_bytes(const void *object) {
    return object_bytes(((uint64_t)object - REGION_START) >> CLASS_SHIFT & (CLASSES - 1));
}

#endif
