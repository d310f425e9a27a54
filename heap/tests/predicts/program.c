/* What heap/tests/predicts.rs runs: its argument says which calls it makes. It ends with the heap's statistics. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
int mayfly_heap_stats(char *, size_t) __attribute__((weak));
void mayfly_heap_set_clock(unsigned long) __attribute__((weak));
/* Time passes on the heap's clock alone: so lifetimes are the same on a busy machine. */
static unsigned long now_us = 1000;
static void pass(int us) { now_us += us; if (mayfly_heap_set_clock) mayfly_heap_set_clock(now_us * 1000); }
enum { SPANS = 300, EACH = 16384 };
static void *kept[64][SPANS];
/* A wrapper: who calls it decides how long its objects live, and the model has to look behind it. */
FUNCTION void *get(size_t size) { void *p = malloc(size); memset(p, 1, size); return p; }
FUNCTION void briefly(void) { for (int i = 0; i < 100000; i++) { free(get(64)); __asm__(""); } }
FUNCTION void fill_short(int n) { for (int i = 0; i < SPANS; i++) kept[n][i] = get(EACH / 2 - n * 16); __asm__(""); }
FUNCTION void fill_long(int n) { char big[512]; memset(big, 0, 512); for (int i = 0; i < SPANS; i++) kept[n][i] = get(EACH / 2 - n * 16); __asm__("" :: "r"(big) : "memory"); }
FUNCTION void refill(void) { pass(0); for (int n = 0; n < 100; n++) { fill_short(2); pass(1000); for (int i = 0; i < SPANS; i++) free(kept[2][i]); } }
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
    pass(0);
    for (int r = 0; r < rounds; r++) {
        many_sites(20);
        pass(milliseconds * 1000);
        for (int i = 0; i < 100; i++) for (int k = 0; k < 20; k++) free(kept[k][i]);
    }
    pass(milliseconds * 1000);
}
/* Objects of three callers come by turns: what the first holds is freed within a moment, what the second holds when all is done, and what the third holds stays. */
enum { ROUNDS = 6000, SIZES = 4, MOMENT = 100, SELDOM = 50 };
static void *moment[MOMENT][SIZES], *lasting[ROUNDS][SIZES], *staying[ROUNDS];
FUNCTION void for_a_moment(int r) { for (int i = 0; i < SIZES; i++) { free(moment[r % MOMENT][i]); moment[r % MOMENT][i] = get(2048 + i * 80); } __asm__(""); }
FUNCTION void for_long(int r) { char big[512]; memset(big, 0, 512); for (int i = r % 2; i < SIZES; i += 2) lasting[r][i] = get(2048 + i * 80); __asm__("" :: "r"(big) : "memory"); }
FUNCTION void for_ever(int r) { char big[1024]; memset(big, 0, 1024); staying[r] = get(2048); __asm__("" :: "r"(big) : "memory"); }
FUNCTION void torn(void) {
    for (int r = 0; r < ROUNDS; r++) { for_a_moment(r); for_long(r); if (r % SELDOM == 0) for_ever(r); if (r % 4 == 0) pass(300); }
    for (int r = 0; r < MOMENT; r++) for (int i = 0; i < SIZES; i++) free(moment[r][i]);
    for (int r = 0; r < ROUNDS; r++) for (int i = 0; i < SIZES; i++) free(lasting[r][i]);
    /* Its maintenance is done by who allocates. */
    for (int i = 0; i < 20; i++) { pass(30000); free(malloc(40000)); }
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
    if (!strcmp(what, "torn")) torn();
    if (!strcmp(what, "seldom")) for (int i = 0; i < 100; i++) kept[0][i] = get(200);
    if (!strcmp(what, "heights")) {
        void *(*all[])(void *) = {in_shallow, in_deep, in_shallow};
        for (int i = 0; i < 3; i++) { pthread_t one; pthread_create(&one, 0, all[i], 0); pthread_join(one, 0); }
    }
    static char text[16384];
    if (mayfly_heap_stats) { mayfly_heap_stats(text, sizeof text); fputs(text, stdout); }
    return count > 2;
}
