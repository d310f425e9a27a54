/* Marks for the simulator: an instruction that does nothing, with a code in it that the simulator's QEMU plugin sees when
 * it translates. Arguments are in rdi and rsi. sim/docs: docs/sim.md. */
#ifndef MEMENTO_MARKS_H
#define MEMENTO_MARKS_H

enum mark {
    MARK_REGION_BEGIN = 0x01,  /* the measured part of a program begins */
    MARK_REGION_END = 0x02,    /* and ends; status */
    MARK_MEMENTO_REGION = 0x10, /* MRS, MRE | flags */
    MARK_OP_BEGIN = 0x11,      /* what follows, up to a closing mark, is the hardware's work */
    MARK_OBJ_ALLOC = 0x12,     /* closes: size | lane << 32, address or 0 */
    MARK_OBJ_FREE = 0x13,      /* closes: address, lane */
    MARK_OP_NONE = 0x14,       /* closes, and was nothing */
    MARK_FREE_BATCH = 0x15,    /* closes: lane */
    MARK_DOUBLE_FREE = 0x16,   /* closes: address, lane; the free raised an exception */
    /* 0x17 to 0x19: redirect.h */
    MARK_MALLOC_ENTER = 0x20,  /* a software allocator: size */
    MARK_MALLOC_LEAVE = 0x21,  /* address */
    MARK_FREE_ENTER = 0x22,    /* address */
    MARK_FREE_LEAVE = 0x23,
    MARK_EVENT = 0x30,         /* a program's own event: number */
};

enum { REGION_EAGER = 1, REGION_WHOLE_PAGES = 2 };

#define MARK(code, first, second)                                                                                     \
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0000 + %c2"                                           \
                     :                                                                                                \
                     : "D"((unsigned long)(first)), "S"((unsigned long)(second)), "i"(code)                           \
                     : "memory")

/* The same for an instruction whose result, the second argument, is in rax from then on. */
#define MARK_RESULT(code, first, result)                                                                              \
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0000 + %c3"                                           \
                     : "+a"(result)                                                                                   \
                     : "D"((unsigned long)(first)), "S"((unsigned long)(result)), "i"(code)                           \
                     : "memory")

#endif
