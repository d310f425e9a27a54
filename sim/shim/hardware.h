/* obj-alloc and obj-free as a program executes them. The software around an instruction is a comparison and a
 * branch (§4); the simulator does not charge the rest: it begins right behind the comparison, and ends with the
 * operation's closing mark. */
#ifndef MEMENTO_HARDWARE_H
#define MEMENTO_HARDWARE_H

#include <stddef.h>
#include <stdint.h>

#include "arenas.h"
#include "layout.h"
#include "marks.h"

#pragma GCC visibility push(hidden)

extern enum hardware_state { UNOPENED, OPEN, SOFTWARE } hardware_state;

enum { HELD = 1 << 30, NOTHING = 1 << 29 };

struct done {
    void *object;      /* NULL: the software allocator has to do it */
    uint64_t operands; /* size | lane << 32, and whether a lock is held until the mark */
};

/* The allocator beneath. */
typedef void *software(void *context, size_t size);

struct done hardware_do_allocate(size_t size);
struct done hardware_do_allocate_aligned(size_t size);
unsigned hardware_do_free(void *object);
void *hardware_end_allocate(struct done done, size_t size, software *otherwise, void *context);
void hardware_end_free(void *object, unsigned done);
void hardware_close_at_exit(void);

#pragma GCC visibility pop

/* Begins the operation and calls a function in it. The compiler does not see the call, so that it saves nothing for it
 * where that would be charged: all is saved here. There must be no red zone (build says so). */
#define UNSEEN_CALL(function)                                                                                         \
    ".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0000 + %c[begin];"                                                     \
    "push %%rdi; push %%rsi; push %%rcx; push %%r8; push %%r9; push %%r10; push %%r11; push %%rbp;"                   \
    "mov %%rsp, %%rbp; and $-16, %%rsp; call " #function "; leave;"                                                   \
    "pop %%r11; pop %%r10; pop %%r9; pop %%r8; pop %%rcx; pop %%rsi; pop %%rdi"
#define UNSEEN_CLOBBERS                                                                                               \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",        \
        "xmm13", "xmm14", "xmm15", "memory", "cc"

/* Whether a reallocation leaves an object where it is: it fits, and not much is lost. */
static inline int stays(const void *object, size_t size) {
    size_t old = class_bytes(object);
    return hardware_state == OPEN && size <= old && size > old - old / 4;
}

/* For a size of up to 512 bytes; if that is not possible, `otherwise` does it. The result is in rax, as an instruction's
 * would be. The size is rounded up to the next 8 bytes (§3.1: 64 classes). */
#define HARDWARE_ALLOCATE(name, function)                                                                             \
    static inline __attribute__((always_inline)) void *name(size_t size, software *otherwise, void *context) {        \
        struct done done;                                                                                             \
        __asm__ volatile(UNSEEN_CALL(function)                                                                        \
                         : "=a"(done.object), "=d"(done.operands)                                                     \
                         : "D"(size), [begin] "i"(MARK_OP_BEGIN)                                                      \
                         : UNSEEN_CLOBBERS);                                                                          \
        if (__builtin_expect(!done.object || done.operands & HELD, 0))                                                \
            return hardware_end_allocate(done, size, otherwise, context);                                             \
        MARK_RESULT(MARK_OBJ_ALLOC, done.operands, done.object);                                                      \
        return done.object;                                                                                           \
    }

HARDWARE_ALLOCATE(hardware_allocate, hardware_do_allocate)
/* C's malloc promises an alignment of 16 bytes, on which compilers rely: sizes above 8 are rounded up to 16 first. */
HARDWARE_ALLOCATE(hardware_allocate_aligned, hardware_do_allocate_aligned)

static inline __attribute__((always_inline)) void hardware_free(void *object) {
    unsigned done;
    __asm__ volatile(UNSEEN_CALL(hardware_do_free)
                     : "=a"(done)
                     : "D"(object), [begin] "i"(MARK_OP_BEGIN)
                     : "rdx", UNSEEN_CLOBBERS);
    if (__builtin_expect(done & (HELD | NOTHING), 0)) {
        hardware_end_free(object, done);
        return;
    }
    MARK(MARK_OBJ_FREE, object, done);
}

#endif
