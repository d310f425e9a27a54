/* Arenas, object for object as sim/memento/src/reference.rs describes them (Memento §3.1): the lowest free object of the
 * current arena; a full arena makes room for the head of the available list or for a new arena; a free puts a full
 * arena at the head of that list; an arena without objects goes back unless its class allocates from it.
 *
 * A lane is a thread's set of arenas. Its lock is needed because other threads may free into it; hardware would order
 * such frees by the coherence protocol (§4). */
#define _GNU_SOURCE
#include "arenas.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "layout.h"
#include "marks.h"

struct arena {
    uint64_t address; /* its own: distinguishes an arena from unused memory */
    uint64_t bitmap[OBJECTS / 64];
    uint64_t bypass_counter; /* used by the simulator alone */
    struct arena *prev, *next;
};
_Static_assert(sizeof(struct arena) == HEADER_BYTES, "a header is a line");

struct class {
    struct arena *current, *available, *full;
    uint64_t next;      /* where the next arena will be */
    uint64_t populated; /* memory up to here is there */
};

static struct {
    struct class classes[CLASSES];
    struct arena *freed; /* their memory is yet to be returned to the kernel, linked by next */
    uint64_t freed_bytes;
    pthread_mutex_t lock;
} lanes[LANES];

static int eager_loading, one_lock_for_all, whole_pages;

/* Memory is mapped and returned to the guest's kernel in large pieces: each call takes simulation time, and takes or leaves
 * pages that the kernel would next hand to others, warm or cold as no hardware page allocator would have left them. */
enum { AHEAD_BYTES = 16 * PAGE_BYTES, RETURNED_BYTES = 2048 * PAGE_BYTES };

int arenas_hold(unsigned lane) {
    if (__libc_single_threaded) return 0;
    pthread_mutex_lock(&lanes[one_lock_for_all ? 0 : lane].lock);
    return 1;
}

void arenas_release(unsigned lane, int held) {
    if (!held) return;
    MARK(MARK_OP_BEGIN, 0, 0);
    pthread_mutex_unlock(&lanes[one_lock_for_all ? 0 : lane].lock);
    MARK(MARK_OP_NONE, 0, 0);
}

int arenas_open(int eager, int one_lock, int whole) {
    void *region = mmap((void *)REGION_START, REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (region != (void *)REGION_START) {
        if (region != MAP_FAILED) munmap(region, REGION_BYTES);
        dprintf(2, "libmemento: cannot reserve %llu GiB of addresses at %#llx (%s): this process allocates in software\n",
                (unsigned long long)(REGION_BYTES >> 30), (unsigned long long)REGION_START,
                strerror(region == MAP_FAILED ? errno : EEXIST));
        return 0;
    }
    madvise(region, REGION_BYTES, MADV_NOHUGEPAGE);
    madvise(region, REGION_BYTES, MADV_DONTDUMP);
    for (unsigned lane = 0; lane < LANES; lane++) {
        pthread_mutex_init(&lanes[lane].lock, NULL);
        for (unsigned class = 0; class < CLASSES; class++)
            lanes[lane].classes[class].next = lanes[lane].classes[class].populated = class_start(class, lane);
    }
    eager_loading = eager;
    one_lock_for_all = one_lock;
    whole_pages = whole;
    MARK(MARK_MEMENTO_REGION, REGION_START,
         REGION_START + REGION_BYTES + (eager ? REGION_EAGER : 0) + (whole ? REGION_WHOLE_PAGES : 0));
    return 1;
}

void arenas_unshare(void) {
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned number = 0; number < CLASSES; number++) {
            uint64_t start = class_start(number, lane), end = lanes[lane].classes[number].populated;
            if (end > start) madvise((void *)start, end - start, MADV_POPULATE_WRITE);
        }
}

void arenas_close(void) {
    mmap((void *)REGION_START, REGION_BYTES, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void push(struct arena **list, struct arena *arena) {
    arena->prev = NULL;
    arena->next = *list;
    if (*list) (*list)->prev = arena;
    *list = arena;
}

static void unlink_arena(struct arena **list, struct arena *arena) {
    if (arena->prev) arena->prev->next = arena->next;
    else *list = arena->next;
    if (arena->next) arena->next->prev = arena->prev;
    arena->prev = arena->next = NULL;
}

static int is_full(const struct arena *arena) {
    return (arena->bitmap[0] & arena->bitmap[1] & arena->bitmap[2] & arena->bitmap[3]) == UINT64_MAX;
}

/* Bits of the bitmap's last word that are always set: of objects that have no room. */
static uint64_t absent_bits(unsigned class) { return ~(UINT64_MAX >> absent_objects(class, whole_pages)); }

static int is_empty(const struct arena *arena, unsigned class) {
    return (arena->bitmap[0] | arena->bitmap[1] | arena->bitmap[2]) == 0 && arena->bitmap[3] == absent_bits(class);
}

/* All of an arena's pages are there before the program sees it: the page allocator charges their cost, in
 * simulated time. */
static int populate(struct class *class, uint64_t start, uint64_t end, uint64_t limit) {
    if (end <= class->populated) return 1;
    uint64_t from = class->populated > start ? class->populated : start;
    uint64_t to = end > from + AHEAD_BYTES ? end : from + AHEAD_BYTES;
    if (to > limit) to = limit;
    if (madvise((void *)from, to - from, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL) return 0;
        /* A kernel before 5.14. */
        for (uint64_t page = from; page < to; page += PAGE_BYTES) *(volatile char *)page = 0;
    }
    class->populated = to;
    return 1;
}

static struct arena *new_arena(unsigned lane, unsigned number) {
    struct class *class = &lanes[lane].classes[number];
    uint64_t limit = class_end(number, lane);
    uint64_t end = class->next + arena_bytes(number);
    if (end > limit || !populate(class, class->next, end, limit)) return NULL;
    struct arena *arena = (struct arena *)class->next;
    class->next = end;
    arena->address = (uint64_t)arena;
    arena->bitmap[3] = absent_bits(number);
    return arena;
}

/* The class's next arena; its full one, if it has one, goes to the full list. */
static int replace(unsigned lane, unsigned number) {
    struct class *class = &lanes[lane].classes[number];
    struct arena *arena = class->available;
    if (arena) unlink_arena(&class->available, arena);
    else arena = new_arena(lane, number);
    if (!arena) return 0;
    if (class->current) push(&class->full, class->current);
    class->current = arena;
    return 1;
}

static void *take_first(struct arena *arena, unsigned class) {
    unsigned word = 0;
    while (arena->bitmap[word] == UINT64_MAX) word++;
    unsigned bit = __builtin_ctzll(~arena->bitmap[word]);
    arena->bitmap[word] |= UINT64_C(1) << bit;
    return (char *)arena + HEADER_BYTES + (word * 64 + bit) * object_bytes(class);
}

void *arenas_allocate(unsigned lane, unsigned number) {
    struct class *class = &lanes[lane].classes[number];
    if ((!class->current || is_full(class->current)) && !replace(lane, number)) return NULL;
    void *object = take_first(class->current, number);
    if (eager_loading && is_full(class->current)) replace(lane, number);
    return object;
}

struct place {
    unsigned class, lane, index;
    struct arena *arena;
};

static int locate(const void *object, struct place *place) {
    uint64_t offset = (uint64_t)object - REGION_START;
    place->class = (offset >> CLASS_SHIFT) % CLASSES;
    place->lane = offset >> LANE_SHIFT;
    uint64_t start = class_start(place->class, place->lane);
    if ((uint64_t)object < start) return 0;
    uint64_t in_arena = ((uint64_t)object - start) % arena_bytes(place->class);
    place->arena = (struct arena *)((uint64_t)object - in_arena);
    uint64_t body = in_arena - HEADER_BYTES;
    place->index = body / object_bytes(place->class);
    return in_arena >= HEADER_BYTES && body % object_bytes(place->class) == 0 && place->index < OBJECTS;
}

static int is_allocated(const struct place *place) {
    return place->arena->bitmap[place->index / 64] >> (place->index % 64) & 1 &&
           place->index + absent_objects(place->class, whole_pages) < OBJECTS;
}

/* Beyond the bump pointer no page is looked at: reading it would map one. */
static int has_arena(const struct place *place) {
    return (uint64_t)place->arena < lanes[place->lane].classes[place->class].next &&
           place->arena->address == (uint64_t)place->arena;
}

static void give_back(unsigned lane, struct arena *arena, unsigned class) {
    arena->address = 0;
    arena->next = lanes[lane].freed;
    lanes[lane].freed = arena;
    lanes[lane].freed_bytes += arena_bytes(class);
    if (lanes[lane].freed_bytes < RETURNED_BYTES) return;
    while ((arena = lanes[lane].freed)) {
        struct place place;
        lanes[lane].freed = arena->next;
        locate((char *)arena + HEADER_BYTES, &place);
        madvise(arena, arena_bytes(place.class), MADV_DONTNEED);
    }
    lanes[lane].freed_bytes = 0;
}

enum outcome arenas_free(void *object) {
    struct place place;
    if (!locate(object, &place)) return NOT_AN_OBJECT;
    if (!has_arena(&place)) return NO_ARENA;
    if (!is_allocated(&place)) return DOUBLE_FREE;
    struct class *class = &lanes[place.lane].classes[place.class];
    struct arena *arena = place.arena;
    int was_full = is_full(arena);
    arena->bitmap[place.index / 64] &= ~(UINT64_C(1) << (place.index % 64));
    if (arena == class->current) return DONE;
    if (was_full) {
        unlink_arena(&class->full, arena);
        push(&class->available, arena);
    }
    if (is_empty(arena, place.class)) {
        unlink_arena(&class->available, arena);
        give_back(place.lane, arena, place.class);
    }
    return DONE;
}

unsigned arenas_lane(const void *object) { return ((uint64_t)object - REGION_START) >> LANE_SHIFT; }

void arenas_lock_all(void) {
    for (unsigned lane = 0; lane < LANES; lane++) pthread_mutex_lock(&lanes[lane].lock);
}

void arenas_unlock_all(void) {
    for (unsigned lane = 0; lane < LANES; lane++) pthread_mutex_unlock(&lanes[lane].lock);
}
