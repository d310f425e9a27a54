/* libmemento.so: malloc and its family on Memento's two instructions (§4): objects of up to 512 bytes are the hardware's,
 * larger ones the software allocator's beneath. Each operation on the hardware is work that the simulator does not
 * charge, closed by a mark that it charges as one instruction; without the simulator it is just an allocator.
 *
 * Sizes above 8 bytes are rounded up to 16, since C's malloc promises that alignment and compilers rely on it.
 * Threads: each has a lane of its own, so that only its own core allocates there (§4); the 32nd and later share the
 * last. Fork: the child has a copy of the arenas and no region of its own, so it allocates in software until it runs
 * another program, and what it frees of its parent's objects stays.
 *
 * Settings: MEMENTO_EAGER=0 takes the next arena when it is needed and not when the last object is taken;
 * MEMENTO_REMOTE=batch frees other threads' objects 32 at a time (§4, software-assisted); MEMENTO_JOURNAL=FILE. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "arenas.h"
#include "journal.h"
#include "layout.h"
#include "marks.h"
#include "software.h"

enum { NO_LANE = -1, BATCH_OBJECTS = 32, LARGEST_ALIGNMENT = 64 };

struct batch {
    unsigned many;
    void *objects[BATCH_OBJECTS];
};

static enum { UNOPENED, OPEN, SOFTWARE } state;
static int batching;
static pthread_key_t thread_end;
static pthread_mutex_t lane_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t lanes_in_use;
static struct batch batches[LANES];
static __thread int own_lane __attribute__((tls_model("initial-exec"))) = NO_LANE;

static void thread_ends(void *);

static void before_fork(void) {
    pthread_mutex_lock(&lane_lock);
    arenas_lock_all();
    journal_begin();
}

static void after_fork(void) {
    journal_skip();
    arenas_unlock_all();
    pthread_mutex_unlock(&lane_lock);
}

static void in_child(void) {
    journal_close_in_child();
    arenas_unlock_all();
    pthread_mutex_unlock(&lane_lock);
    if (state == OPEN) state = SOFTWARE;
}

/* At the first allocation of the process, when it has one thread. */
static void open_hardware(void) {
    state = SOFTWARE; /* what is allocated meanwhile */
    const char *eager = getenv("MEMENTO_EAGER"), *remote = getenv("MEMENTO_REMOTE");
    const char *journal = getenv("MEMENTO_JOURNAL");
    int is_eager = !eager || strcmp(eager, "0") != 0;
    batching = remote && strcmp(remote, "batch") == 0;
    if (!arenas_open(is_eager, batching)) return;
    if (journal && *journal) journal_open(journal, is_eager, batching ? BATCH_OBJECTS : 0);
    pthread_key_create(&thread_end, thread_ends);
    pthread_atfork(before_fork, after_fork, in_child);
    state = OPEN;
}

/* The process ends: what its kernel would do to free the arenas' pages is not charged, since the page allocator does that
 * (§3.2). A handler that is registered before the program starts runs after all others, and what is left in streams
 * has been written by then. Other threads may still read their objects. */
static void close_hardware(int status, void *ignored) {
    (void)status, (void)ignored;
    if (state != OPEN || !__libc_single_threaded) return;
    fflush(NULL);
    MARK(MARK_OP_BEGIN, 0, 0);
    state = SOFTWARE;
    arenas_close();
    MARK(MARK_OP_NONE, 0, 0);
}

__attribute__((constructor)) static void close_at_exit(void) { on_exit(close_hardware, NULL); }

static unsigned take_lane(void) {
    pthread_mutex_lock(&lane_lock);
    unsigned lane = lanes_in_use == UINT32_MAX ? LANES - 1 : (unsigned)__builtin_ctz(~lanes_in_use);
    lanes_in_use |= UINT32_C(1) << lane;
    pthread_mutex_unlock(&lane_lock);
    own_lane = lane;
    /* Last: it may allocate. */
    if (lane < LANES - 1) pthread_setspecific(thread_end, &batches[lane]);
    return lane;
}

static inline unsigned lane(void) { return own_lane >= 0 ? (unsigned)own_lane : take_lane(); }

static void drain(unsigned lane);

/* The lane, with its arenas, is the next new thread's. */
static void thread_ends(void *ignored) {
    (void)ignored;
    unsigned lane = own_lane;
    if (batches[lane].many) drain(lane);
    pthread_mutex_lock(&lane_lock);
    lanes_in_use &= ~(UINT32_C(1) << lane);
    pthread_mutex_unlock(&lane_lock);
    own_lane = NO_LANE;
}

/* What the software does around an instruction is a comparison and a branch (§4); the rest of these functions is what the
 * simulator does not charge: it begins right behind the comparison, and ends with the operation's closing mark. */
enum { HELD = 1 << 30 };

struct done {
    void *object;      /* NULL: the software allocator has to do it */
    uint64_t operands; /* size | lane << 32, and whether a lock is held until the mark */
};

static int is_open(void) {
    if (__builtin_expect(state == UNOPENED, 0)) open_hardware();
    return state == OPEN;
}

static inline size_t rounded(size_t size) { return size <= 8 ? 8 : (size + 15) & ~(size_t)15; }

static __attribute__((noinline)) struct done allocate(size_t asked) {
    if (!is_open()) return (struct done){NULL, 0};
    size_t size = rounded(asked);
    unsigned own = lane();
    int held = arenas_hold(own);
    journal_begin();
    void *object = arenas_allocate(own, (size - 1) / CLASS_STEP_BYTES);
    journal_end(JOURNAL_ALLOC, own, size, object == NULL, object);
    uint64_t operands = size | (uint64_t)own << 32;
    if (!object) {
        MARK(MARK_OBJ_ALLOC, operands, NULL);
        arenas_release(own, held);
        MARK(MARK_OP_BEGIN, 0, 0);
    }
    return (struct done){object, operands | (held && object ? HELD : 0)};
}

static __attribute__((noinline)) void release(unsigned lane) { arenas_release(lane, 1); }

/* obj-alloc, for a size of up to 512 bytes; NULL if that is not possible. */
static inline __attribute__((always_inline)) void *hardware_allocate(size_t size) {
    MARK(MARK_OP_BEGIN, 0, 0);
    struct done done = allocate(size);
    if (__builtin_expect(!done.object, 0)) {
        MARK(MARK_OP_NONE, 0, 0);
        return NULL;
    }
    if (__builtin_expect(!(done.operands & HELD), 1)) {
        MARK(MARK_OBJ_ALLOC, done.operands, done.object);
        return done.object;
    }
    MARK(MARK_OBJ_ALLOC, done.operands & ~(uint64_t)HELD, done.object);
    release(done.operands >> 32);
    return done.object;
}

static void refuse(const void *object, enum outcome outcome) {
    static const char *const why[] = {[NOT_AN_OBJECT] = "no object starts there", [NO_ARENA] = "no arena is there",
                                      [DOUBLE_FREE] = "it is free already (double free)"};
    dprintf(2, "libmemento: free(%p): %s\n", object, why[outcome]);
    abort();
}

/* The software handler of the buffer. Under the one lock; the mark that closes it does the same to the model. */
static enum outcome empty_batch(unsigned own, void **wrong) {
    enum outcome worst = DONE;
    for (unsigned i = 0; i < batches[own].many; i++) {
        enum outcome outcome = arenas_free(batches[own].objects[i]);
        if (outcome != DONE) worst = outcome, *wrong = batches[own].objects[i];
    }
    batches[own].many = 0;
    return worst;
}

/* A thread ends before its buffer is full. */
static void drain(unsigned own) {
    void *wrong = NULL;
    MARK(MARK_OP_BEGIN, 0, 0);
    int held = arenas_hold(own);
    journal_begin();
    enum outcome outcome = empty_batch(own, &wrong);
    journal_end(JOURNAL_BATCH, own, 0, outcome, NULL);
    MARK(MARK_FREE_BATCH, own, 0);
    arenas_release(own, held);
    if (outcome != DONE) refuse(wrong, outcome);
}

/* A free of another thread's object goes to the buffer; the one that fills it empties it. */
static enum outcome free_batched(unsigned own, void **object) {
    batches[own].objects[batches[own].many++] = *object;
    return batches[own].many < BATCH_OBJECTS ? DONE : empty_batch(own, object);
}

/* What the closing mark has to say beside the address: the lane, and whether the lock of the object's is held. */
static __attribute__((noinline)) unsigned do_free(void *object) {
    unsigned own = lane(), its = arenas_lane(object);
    void *wrong = object;
    int held = arenas_hold(its);
    journal_begin();
    enum outcome outcome = batching && its != own ? free_batched(own, &wrong) : arenas_free(object);
    journal_end(JOURNAL_FREE, own, 0, outcome, object);
    if (outcome != DONE) {
        MARK(MARK_DOUBLE_FREE, object, own);
        refuse(wrong, outcome);
    }
    return own | (held ? HELD : 0);
}

static inline __attribute__((always_inline)) void hardware_free(void *object) {
    MARK(MARK_OP_BEGIN, 0, 0);
    if (__builtin_expect(state != OPEN, 0)) {
        /* A child's copy of its parent's objects stays. */
        MARK(MARK_OP_NONE, 0, 0);
        return;
    }
    unsigned done = do_free(object);
    if (__builtin_expect(!(done & HELD), 1)) {
        MARK(MARK_OBJ_FREE, object, done);
        return;
    }
    MARK(MARK_OBJ_FREE, object, done & ~HELD);
    release(arenas_lane(object));
}

void *malloc(size_t size) {
    if (size <= LARGEST_BYTES) {
        void *object = hardware_allocate(size);
        if (__builtin_expect(object != NULL, 1)) return object;
    }
    return software_malloc(size);
}

void free(void *object) {
    if (in_region(object)) hardware_free(object);
    else software_free(object);
}

void *calloc(size_t many, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(many, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    if (bytes <= LARGEST_BYTES) {
        void *object = hardware_allocate(bytes);
        if (object) return memset(object, 0, bytes);
    }
    return software_calloc(many, size);
}

void *realloc(void *object, size_t size) {
    if (!object) return malloc(size);
    if (!in_region(object)) {
        if (size > LARGEST_BYTES || size == 0 || state != OPEN) return software_realloc(object, size);
        size_t old = software_usable_size(object);
        void *moved = malloc(size);
        if (moved) {
            memcpy(moved, object, old < size ? old : size);
            software_free(object);
        }
        return moved;
    }
    if (size == 0) {
        free(object);
        return NULL;
    }
    size_t old = malloc_usable_size(object);
    if (old == 0) refuse(object, DOUBLE_FREE);
    if (state == OPEN && size <= LARGEST_BYTES && rounded(size) == old) return object;
    void *moved = malloc(size);
    if (moved) {
        memcpy(moved, object, old < size ? old : size);
        free(object);
    }
    return moved;
}

static void *allocate_aligned(size_t alignment, size_t size) {
    size_t bytes = (size + alignment - 1) & -alignment;
    /* Objects start a line after their arena, so a multiple of the alignment is aligned up to a line. */
    if (alignment <= LARGEST_ALIGNMENT && bytes >= size && bytes > 0 && bytes <= LARGEST_BYTES) {
        void *object = hardware_allocate(bytes);
        if (object) return object;
    }
    return software_memalign(alignment, size);
}

static int is_power_of_two(size_t number) { return number != 0 && (number & (number - 1)) == 0; }

int posix_memalign(void **result, size_t alignment, size_t size) {
    if (!is_power_of_two(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
    int before = errno;
    void *object = allocate_aligned(alignment, size);
    errno = before;
    if (!object) return ENOMEM;
    *result = object;
    return 0;
}

void *memalign(size_t alignment, size_t size) {
    if (!is_power_of_two(alignment)) {
        errno = EINVAL;
        return NULL;
    }
    return allocate_aligned(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

void *valloc(size_t size) { return software_memalign(PAGE_BYTES, size); }

void *pvalloc(size_t size) { return software_memalign(PAGE_BYTES, (size + PAGE_BYTES - 1) & -(size_t)PAGE_BYTES); }

size_t malloc_usable_size(void *object) {
    if (!object) return 0;
    if (!in_region(object)) return software_usable_size(object);
    int held = arenas_hold(arenas_lane(object));
    size_t size = arenas_size(object);
    arenas_release(arenas_lane(object), held);
    return size;
}
