// Used by every test program: CHECK (prints where and why, then exits 1) and patterns that identify their
// object.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition, ...)                                                       \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                           \
            fputc('\n', stderr);                                                    \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

// Hides a value from the compiler, so that it can neither drop a call nor warn about a wrong one.
static inline void *opaque(void *p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}
static inline size_t opaque_size(size_t n) {
    __asm__ volatile("" : "+r"(n));
    return n;
}

// A small random number generator (splitmix64): the same numbers on every machine for one seed.
static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Fills `size` bytes with a pattern that no object with another id has.
static inline void fill(void *object, size_t size, uint64_t id) {
    unsigned char *bytes = (unsigned char *)object;
    uint64_t word = id * 0x9e3779b97f4a7c15u + 1;
    size_t at = 0;
    for (; at + 8 <= size; at += 8, word += 0x0101010101010101u) memcpy(bytes + at, &word, 8);
    memcpy(bytes + at, &word, size - at);
}

// The offset of the first byte that differs from the pattern, or -1.
static inline long first_wrong(const void *object, size_t size, uint64_t id) {
    const unsigned char *bytes = (const unsigned char *)object;
    uint64_t word = id * 0x9e3779b97f4a7c15u + 1;
    size_t at = 0;
    for (; at + 8 <= size; at += 8, word += 0x0101010101010101u)
        if (memcmp(bytes + at, &word, 8) != 0) break;
    for (size_t i = 0; at + i < size && i < 8; i++)
        if (bytes[at + i] != ((unsigned char *)&word)[i]) return (long)(at + i);
    return -1;
}

static inline void expect(const void *object, size_t size, uint64_t id, const char *when) {
    long wrong = first_wrong(object, size, id);
    CHECK(wrong < 0, "%s: object %p of %zu bytes (id %llu) changed at offset %ld", when, object, size,
          (unsigned long long)id, wrong);
}

static inline long resident_bytes(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = -1;
    if (file) fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

// The end of a child's stderr (which it redirected into a file), in one line.
static inline const char *last_words(int file) {
    static char text[512];
    long length = lseek(file, 0, SEEK_END), from = length > (long)sizeof text - 1 ? length - ((long)sizeof text - 1) : 0;
    long have = length < 0 ? -1 : pread(file, text, sizeof text - 1, from);
    text[have < 0 ? 0 : have] = 0;
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = c[1] ? '|' : 0;
    return *text ? text : "nothing";
}

#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)
