/* Chooses, when the first of the redirected functions is called or the process starts, where their calls go. The search for
 * the software's functions may allocate itself: that comes from a small buffer, and is not kept. */
#define _GNU_SOURCE
#include "redirect.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hardware.h"
#include "software.h"

extern char **environ;
extern const struct redirect __start_redirects[] __attribute__((visibility("hidden")));
extern const struct redirect __stop_redirects[] __attribute__((visibility("hidden")));

static int is_found, is_chosen, is_memento;
static _Alignas(16) char early[64 * 1024];
static size_t early_used;

static void *early_malloc(size_t size) {
    size_t start = (early_used + 15) & ~(size_t)15;
    if (size > sizeof early - start) return NULL;
    early_used = start + size;
    return early + start;
}

/* The buffer is zero and used once. */
static void *early_calloc(size_t many, size_t size) { return early_malloc(many * size); }

static void *early_realloc(void *object, size_t size) {
    void *moved = early_malloc(size);
    size_t old = object ? (size_t)(early + early_used - (char *)object) : 0;
    return moved && object ? memcpy(moved, object, old < size ? old : size) : moved;
}

static void early_free(void *object) { (void)object; }

static void *early_function(const char *name) {
    if (strcmp(name, "malloc") == 0) return early_malloc;
    if (strcmp(name, "calloc") == 0) return early_calloc;
    if (strcmp(name, "realloc") == 0) return early_realloc;
    if (strcmp(name, "free") == 0) return early_free;
    return NULL;
}

/* C++'s operators of a program that has no C++ library, or not where symbols are searched: malloc and free. The ones that
 * align are Memento's, which come to the software's memalign. */
static void *without_library(const struct redirect *one) {
    if (strncmp(one->name, "_Zd", 3) == 0) return beneath_free;
    return strstr(one->name, "align") ? one->memento : (void *)beneath_malloc;
}

/* The software's functions. */
static void find(void) {
    is_found = 1;
    for (const struct redirect *one = __start_redirects; one < __stop_redirects; one++)
        if (early_function(one->name)) *one->target = early_function(one->name);
    for (const struct redirect *one = __start_redirects; one < __stop_redirects; one++) {
        void *function = one->software ? one->software : dlsym(RTLD_NEXT, one->name);
        if (!function && strncmp(one->name, "_Z", 2) != 0) {
            dprintf(2, "libmemento: no %s beneath this library: link the program dynamically\n", one->name);
            _exit(127);
        }
        *one->beneath = function ? function : without_library(one);
    }
    /* A name that was not found has left a message in the buffer; the second call frees it. */
    dlerror();
    dlerror();
    for (const struct redirect *one = __start_redirects; one < __stop_redirects; one++) *one->target = *one->beneath;
}

static const char *value_of(char **environment, const char *name) {
    size_t length = strlen(name);
    for (; *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=') return *environment + length + 1;
    return NULL;
}

/* A program whose allocator was changed in place would not have to search: not charged. */
static void choose(char **environment) {
    if (is_chosen) return;
    MARK(MARK_OP_BEGIN, 0, 0);
    if (!is_found) find();
    if (environment) {
        const char *chosen = value_of(environment, "MEMENTO");
        is_memento = chosen ? strcmp(chosen, "0") != 0 : MEMENTO_BY_DEFAULT;
        is_chosen = 1;
        if (!is_memento) hardware_state = SOFTWARE;
        for (const struct redirect *one = __start_redirects; is_memento && one < __stop_redirects; one++)
            *one->target = one->memento;
    }
    MARK(MARK_OP_NONE, 0, 0);
}

__attribute__((constructor)) void redirect_start(int many, char **words, char **environment) {
    (void)many, (void)words;
    choose(environment);
    if (is_memento) hardware_close_at_exit();
}

int redirect_is_memento(void) {
    choose(environ);
    return is_memento;
}

/* Called in place of a redirected function, whose operands are kept. */
__attribute__((used, visibility("hidden"))) void redirect_first_call(void) { choose(environ); }
__asm__(".pushsection .text.redirect, \"ax\", @progbits; .balign 16; redirect_first: .globl redirect_first;"
        ".hidden redirect_first;"
        "push %rdi; push %rsi; push %rdx; push %rcx; push %rbp; mov %rsp, %rbp; and $-16, %rsp;"
        "call redirect_first_call; leave; pop %rcx; pop %rdx; pop %rsi; pop %rdi; ret; .popsection");
