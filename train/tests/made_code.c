/* A program whose allocations are called by code that it generates at run time, at another address for each argument. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *all[20000];

__attribute__((noinline)) void brief(void) {
    for (int i = 0; i < 20000; i++) {
        char *volatile p = malloc(300);
        *p = 1;
        free(p);
    }
}

__attribute__((noinline)) void kept(void) {
    for (int i = 0; i < 20000; i++) *(volatile char *)(all[i] = malloc(200)) = 1;
}

int main(int count, char **arguments) {
    /* push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    void *where = (void *)((count > 1 ? strtoul(arguments[1], 0, 0) : 1) << 32);
    void *made = mmap(where, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return 1;
    memcpy(made, code, sizeof code);
    ((void (*)(void (*)(void)))made)(brief);
    ((void (*)(void (*)(void)))made)(kept);
    return 0;
}
