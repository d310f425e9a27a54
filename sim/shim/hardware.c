/* The state behind the two instructions, and the part of them that a simulator does not charge.
 *
 * Threads: each has a lane of its own, so that only its own core allocates there (§4); the 32nd and later share the
 * last. Fork: the child has a copy of the arenas and no region of its own, so it allocates in software until it runs
 * another program, and its frees of its parent's objects have no effect.
 *
 * Settings: MEMENTO=0 and 1 (redirect.h); MEMENTO_EAGER=0 takes the next arena when it is needed and not when the last
 * object is taken; MEMENTO_REMOTE=batch frees other threads' objects 32 at a time (§4, software-assisted);
 * MEMENTO_WHOLE_PAGES=1 has an arena's header in the place of its last objects, where it would take a page more;
 * MEMENTO_JOURNAL=FILE. */
#define _GNU_SOURCE
#include "hardware.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "journal.h"

enum { NO_LANE = -1, BATCH_OBJECTS = 32 };

struct batch {
    unsigned many;
    void *objects[BATCH_OBJECTS];
};

enum hardware_state hardware_state;
static int batching;
static pthread_key_t thread_end;
static pthread_mutex_t lane_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t lanes_in_use;
static struct batch batches[LANES];
static __thread int own_lane __attribute__((tls_model("initial-exec"))) = NO_LANE;

static void thread_ends(void *);

/* A fork's own work for the region is not charged, as far as it is this library's. */
static void before_fork(void) {
    MARK(MARK_OP_BEGIN, 0, 0);
    pthread_mutex_lock(&lane_lock);
    arenas_lock_all();
    journal_begin();
    MARK(MARK_OP_NONE, 0, 0);
}

static void after_fork(void) {
    MARK(MARK_OP_BEGIN, 0, 0);
    if (hardware_state == OPEN) arenas_unshare();
    journal_skip();
    arenas_unlock_all();
    pthread_mutex_unlock(&lane_lock);
    MARK(MARK_OP_NONE, 0, 0);
}

static void in_child(void) {
    journal_close_in_child();
    arenas_unlock_all();
    pthread_mutex_unlock(&lane_lock);
    if (hardware_state == OPEN) hardware_state = SOFTWARE;
}

/* At the first allocation of the process, when it has one thread. */
static void open_hardware(void) {
    hardware_state = SOFTWARE; /* what is allocated meanwhile */
    const char *eager = getenv("MEMENTO_EAGER"), *remote = getenv("MEMENTO_REMOTE");
    const char *journal = getenv("MEMENTO_JOURNAL");
    const char *whole = getenv("MEMENTO_WHOLE_PAGES");
    int is_eager = !eager || strcmp(eager, "0") != 0, is_whole = whole && strcmp(whole, "1") == 0;
    batching = remote && strcmp(remote, "batch") == 0;
    if (!arenas_open(is_eager, batching, is_whole)) return;
    if (journal && *journal) journal_open(journal, is_eager | is_whole << 1, batching ? BATCH_OBJECTS : 0);
    pthread_key_create(&thread_end, thread_ends);
    pthread_atfork(before_fork, after_fork, in_child);
    hardware_state = OPEN;
}

/* The process ends: its kernel's work to free the arenas' pages is not charged, since the page allocator does that
 * (§3.2). A handler that is registered before the program starts runs after all others, and streams have been
 * flushed by then. Other threads may still read their objects. */
static void close_hardware(int status, void *ignored) {
    (void)status, (void)ignored;
    if (hardware_state != OPEN || !__libc_single_threaded) return;
    fflush(NULL);
    MARK(MARK_OP_BEGIN, 0, 0);
    hardware_state = SOFTWARE;
    arenas_close();
    MARK(MARK_OP_NONE, 0, 0);
}

void hardware_close_at_exit(void) {
    static int is_registered;
    if (!is_registered) on_exit(close_hardware, NULL);
    is_registered = 1;
}

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

static int is_open(void) {
    if (__builtin_expect(hardware_state == UNOPENED, 0)) open_hardware();
    return hardware_state == OPEN;
}

struct done hardware_do_allocate_aligned(size_t asked) {
    return hardware_do_allocate(asked <= 8 ? asked : (asked + 15) & ~(size_t)15);
}

struct done hardware_do_allocate(size_t asked) {
    if (!is_open()) return (struct done){NULL, 0};
    size_t size = asked == 0 ? CLASS_STEP_BYTES : (asked + CLASS_STEP_BYTES - 1) & -(size_t)CLASS_STEP_BYTES;
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

/* The operation was refused, or the lane's lock is held. */
void *hardware_end_allocate(struct done done, size_t size, software *otherwise, void *context) {
    if (!done.object) {
        MARK(MARK_OP_NONE, 0, 0);
        return otherwise(context, size);
    }
    done.operands &= ~(uint64_t)HELD;
    MARK_RESULT(MARK_OBJ_ALLOC, done.operands, done.object);
    arenas_release(done.operands >> 32, 1);
    return done.object;
}

void hardware_end_free(void *object, unsigned done) {
    if (done & NOTHING) {
        MARK(MARK_OP_NONE, 0, 0);
        return;
    }
    MARK(MARK_OBJ_FREE, object, done & ~HELD);
    arenas_release(arenas_lane(object), 1);
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

/* The closing mark's operand beside the address: the lane, and whether the lock of the object's lane is held. A child's
 * copy of its parent's objects stays. */
unsigned hardware_do_free(void *object) {
    if (hardware_state != OPEN) return NOTHING;
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
    return own | (held ? (unsigned)HELD : 0);
}
