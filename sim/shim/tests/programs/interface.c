// Sizes, alignment, contents and errno of the whole malloc family, on both sides of 512 bytes. With a seed, random calls.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                   \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static int is_hardware(const void *object) { return (uintptr_t)object >> 38 == UINT64_C(0x600000000000) >> 38; }

static unsigned long state;
static unsigned long number(unsigned long below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void fixed(void) {
    for (size_t size = 1; size <= 2000; size++) {
        char *object = malloc(size);
        CHECK(object && is_hardware(object) == (size <= 512));
        CHECK((uintptr_t)object % (size <= 8 ? 8 : 16) == 0);
        CHECK(malloc_usable_size(object) >= size);
        memset(object, 0xa5, malloc_usable_size(object));
        free(object);
        char *clear = calloc(1, size);
        for (size_t i = 0; i < size; i++) CHECK(clear[i] == 0);
        free(clear);
    }
    CHECK(malloc_usable_size(NULL) == 0);
    free(NULL);
    char *empty = malloc(0), *other = malloc(0);
    CHECK(empty && other && empty != other);
    free(empty);
    free(other);
    for (size_t alignment = 8; alignment <= 8192; alignment *= 2)
        for (size_t size = 1; size < 1200; size += 37) {
            void *object;
            CHECK(posix_memalign(&object, alignment, size) == 0 && (uintptr_t)object % alignment == 0);
            memset(object, 1, size);
            void *second = aligned_alloc(alignment, (size + alignment - 1) & -alignment);
            CHECK(second && (uintptr_t)second % alignment == 0);
            free(object);
            free(second);
        }
    void *object = &state;
    CHECK(posix_memalign(&object, 24, 8) == EINVAL && object == &state);
    errno = 0;
    CHECK(calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    CHECK(malloc(SIZE_MAX - 4096) == NULL);
    CHECK((uintptr_t)valloc(10) % 4096 == 0 && (uintptr_t)pvalloc(10) % 4096 == 0);
}

static void random_calls(int rounds) {
    enum { SLOTS = 60000 };
    static struct { unsigned char *object; size_t size; unsigned char fill; } slot[SLOTS];
    for (int round = 0; round < rounds; round++) {
        unsigned long i = number(SLOTS), size = number(8) == 0 ? number(3000) : number(520);
        if (slot[i].object) {
            for (size_t k = 0; k < slot[i].size; k++) CHECK(slot[i].object[k] == slot[i].fill);
            if (number(3) == 0) {
                slot[i].object = realloc(slot[i].object, size + 1);
                CHECK(slot[i].object);
                for (size_t k = 0; k < slot[i].size && k < size + 1; k++) CHECK(slot[i].object[k] == slot[i].fill);
                slot[i].size = size + 1;
                memset(slot[i].object, slot[i].fill, slot[i].size);
            } else {
                free(slot[i].object);
                slot[i].object = NULL;
            }
        } else {
            slot[i].object = number(2) ? malloc(size) : calloc(1, size);
            slot[i].size = size;
            slot[i].fill = number(256);
            memset(slot[i].object, slot[i].fill, size);
        }
    }
}

int main(int argc, char **argv) {
    state = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    fixed();
    random_calls(argc > 2 ? atoi(argv[2]) : 400000);
    puts("well");
}
