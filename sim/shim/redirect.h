/* One program for both sides: a function of the software's allocator is reached by one jump, which leads to it, or to
 * Memento's (§4: "expose the address of the software allocation and free function calls and let Memento redirect
 * control"). The simulator charges the jump on neither side, so the baseline is as it would be without it.
 *
 * MEMENTO=0 chooses the software, MEMENTO=1 Memento; without it the library has Memento and CPython the software. */
#ifndef MEMENTO_REDIRECT_H
#define MEMENTO_REDIRECT_H

#include <stddef.h>

/* Entries of one section, which are an array: compilers align large structures further. A function: where its calls go, where those go that Memento leaves to the software, and what may be chosen. */
struct redirect {
    void **target, **beneath;
    const char *name;
    void *memento, *software; /* no software: the next function of that name in the order of symbols */
};

#pragma GCC visibility push(hidden)

/* At the start of a process, when its environment is not the C library's yet. */
void redirect_start(int many, char **words, char **environment);
/* Whether Memento is chosen. */
int redirect_is_memento(void);

#pragma GCC visibility pop

/* Blocks that begin with one of these marks are never charged; see sim/src/system/machine/calls.rs. */
#define MARK_REDIRECT ".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0017;"
#define MARK_REPLACED ".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0018;"
#define MARK_SOFTWARE ".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0019;"

/* Aligned, so that none of them is on two pages. The first call of all leads to the choice. */
#define REDIRECT_CODE(name, memento)                                                                                  \
    __asm__(".pushsection .text.redirect, \"ax\", @progbits;"                                                        \
            ".balign 16; .globl " #name "; .type " #name ", @function;" #name ":" MARK_REDIRECT                       \
            "jmp *target_" #name "(%rip); .size " #name ", . - " #name ";"                                            \
            ".balign 16; replaced_" #name ":" MARK_REPLACED "jmp " #memento ";"                                       \
            ".balign 16; .globl beneath_" #name "; .hidden beneath_" #name "; beneath_" #name ":" MARK_SOFTWARE        \
            "jmp *software_target_" #name "(%rip);"                                                                  \
            ".balign 16; first_" #name ": call redirect_first; jmp " #name ";"                                        \
            ".popsection");

#define REDIRECT_ENTRY(name_, chosen, software_)                                                                      \
    extern char first_##name_[] __attribute__((visibility("hidden")));                                                \
    extern char replaced_##name_[] __attribute__((visibility("hidden")));                                             \
    __attribute__((visibility("hidden"), used)) void *target_##name_ = first_##name_;                                 \
    __attribute__((visibility("hidden"), used)) void *software_target_##name_ = first_##name_;                        \
    __attribute__((section("redirects"), aligned(8), used)) static const struct redirect redirect_##name_ = {                     \
        &target_##name_, &software_target_##name_, #name_, (void *)(chosen), (void *)(software_)};

/* A call of it is Memento's instruction: the call itself is replaced (§5). */
#define REDIRECT_REPLACED(name, software)                                                                             \
    REDIRECT_CODE(name, memento_##name)                                                                               \
    REDIRECT_ENTRY(name, replaced_##name, software)

/* A call of it is a call, of software that may execute the instructions (calloc, realloc). */
#define REDIRECT_CALLED(name, software)                                                                               \
    REDIRECT_CODE(name, memento_##name)                                                                               \
    REDIRECT_ENTRY(name, memento_##name, software)

/* Functions that the code above names. */
#define REDIRECTED __attribute__((visibility("hidden"), used))

#endif
