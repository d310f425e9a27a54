/* What heap/tests/predicts.rs runs: its argument says which calls it makes. It ends with the heap's statistics. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
int mayfly_heap_stats(char *, size_t) __attribute__((weak));
enum { SPANS = 300, EACH = 16384 };
static void *kept[64][SPANS];
/* A wrapper: who calls it decides how long its objects live, and the model has to look behind it. */
FUNCTION void *get(size_t size) { void *p = malloc(size); memset(p, 1, size); return p; }
FUNCTION void briefly(void) { for (int i = 0; i < 100000; i++) { free(get(64)); __asm__(""); } }
FUNCTION void fill_short(int n) { for (int i = 0; i < SPANS; i++) kept[n][i] = get(EACH / 2 - n * 16); __asm__(""); }
FUNCTION void fill_long(int n) { char big[512]; memset(big, 0, 512); for (int i = 0; i < SPANS; i++) kept[n][i] = get(EACH / 2 - n * 16); __asm__("" :: "r"(big) : "memory"); }
FUNCTION void refill(void) { for (int n = 0; n < 100; n++) { fill_short(2); for (int i = 0; i < SPANS; i++) free(kept[2][i]); } }
/* The same return address, height and size, from two callers: only a second look at the stack tells them apart. */
FUNCTION void *alias(int n) { void *p = get(200); __asm__(""); return p; }
FUNCTION void from_one(int n) { for (int i = 0; i < n; i++) free(alias(i)); __asm__(""); }
FUNCTION void from_two(int n) { for (int i = 0; i < n; i++) free(alias(i)); __asm__(""); }
FUNCTION void *in_thread(void *unused) { briefly(); from_one(5000); return unused; }
/* Each thread's first call is the same; what lies above it on the stack is not. */
FUNCTION void *in_shallow(void *unused) { from_one(5000); return unused; }
FUNCTION void *in_deep(void *unused) { char big[4096]; memset(big, 0, 4096); from_one(5000); __asm__("" :: "r"(big) : "memory"); return unused; }
/* A hundred call sites, by size. What they hold for a while dies before a second is over. */
FUNCTION void many_sites(int n) { for (int i = 0; i < 100; i++) for (int k = 0; k < n; k++) kept[k][i] = get(16 + i * 16); __asm__(""); }
FUNCTION void hold(int rounds, int milliseconds) {
    for (int r = 0; r < rounds; r++) {
        many_sites(20);
        usleep(milliseconds * 1000);
        for (int i = 0; i < 100; i++) for (int k = 0; k < 20; k++) free(kept[k][i]);
    }
    usleep(milliseconds * 1000);
}
int main(int count, char **arguments) {
    const char *what = arguments[1];
    if (!strcmp(what, "classes")) { fill_short(0); fill_long(1); briefly(); }
    if (!strcmp(what, "refill")) refill();
    if (!strcmp(what, "alias")) { from_one(20000); from_two(20000); }
    if (!strcmp(what, "alias_back")) { from_two(20000); from_one(20000); }
    if (!strcmp(what, "threads")) {
        pthread_t all[8];
        for (int i = 0; i < 8; i++) pthread_create(all + i, 0, in_thread, 0);
        for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
    }
    if (!strcmp(what, "strange")) { hold(40, 20); fill_short(30); fill_long(31); }
    if (!strcmp(what, "contrary")) hold(150, 15);
    if (!strcmp(what, "seldom")) for (int i = 0; i < 100; i++) kept[0][i] = get(200);
    if (!strcmp(what, "heights")) {
        void *(*all[])(void *) = {in_shallow, in_deep, in_shallow};
        for (int i = 0; i < 3; i++) { pthread_t one; pthread_create(&one, 0, all[i], 0); pthread_join(one, 0); }
    }
    static char text[16384];
    if (mayfly_heap_stats) { mayfly_heap_stats(text, sizeof text); fputs(text, stdout); }
    return count > 2;
}
