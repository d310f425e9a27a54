// Threads that drop, move or grow memory at the very moment at which another thread advises it: `races CASE`.
// The first cases delay a call right before its system call (delayed_calls.c, preloaded), until the advice
// has ended or has waited long enough.
// variants: started by the runner
#include "merge_test.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/uio.h>

enum { PAGES = 2048, BYTES = PAGES * PAGE };

static unsigned char *anonymous(size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%m");
    return at;
}

static void fill_pages(unsigned char *at, size_t pages, uint64_t content) {
    for (size_t p = 0; p < pages; p++) fill(at + p * PAGE, PAGE, content + p);
}

static void expect_pages(unsigned char *at, size_t pages, uint64_t content, const char *when) {
    for (size_t p = 0; p < pages; p++) expect(at + p * PAGE, PAGE, content + p, when);
}

static void expect_zeros(const unsigned char *at, size_t bytes, const char *when) {
    for (size_t i = 0; i < bytes; i++) CHECK(!at[i], "%s: byte %zu of %zu is %#x and not 0", when, i, bytes, at[i]);
}

static void must_advise(void *at, size_t bytes) {
    CHECK(!mayfly_advise(at, bytes, 0), "%s: %s", strerror(errno), mayfly_merge_error());
}

static _Thread_local bool is_late;
static atomic_bool has_come, is_over, is_advised;

static void hold_up(void) {
    if (!is_late) return;
    has_come = true;
    for (int i = 0; i < 1000 && !is_advised; i++) usleep(1000);
}

static unsigned char *block;
static void *(*act)(void);

static void *late_thread(void *unused) {
    (void)unused;
    is_late = true;
    void *result = act();
    is_over = true;
    return result;
}

// Returns the result of `what`, called by a thread that is delayed while this one advises the memory in
// question.
static void *while_advising(void *(*what)(void), void *at, size_t bytes) {
    void (**hook)(void) = dlsym(RTLD_DEFAULT, "late_hook");
    CHECK(hook, "delayed_calls.c is not preloaded");
    unsigned char *other = anonymous(BYTES);
    fill_pages(other, PAGES, 5000);
    must_advise(other, BYTES);  // from now on the library interposes
    *hook = hold_up;
    act = what;
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, NULL, late_thread, NULL), "%m");
    while (!has_come && !is_over) sched_yield();
    // If the advice waits for the other thread, the old memory is somewhere else by then.
    CHECK(is_over || !mayfly_advise(at, bytes, 0) || errno == ENOMEM, "%s: %s", strerror(errno), mayfly_merge_error());
    is_advised = true;
    pthread_join(thread, &result);
    *hook = NULL;
    return result;
}

static void *drop(void) { return madvise(block, BYTES, MADV_DONTNEED) ? MAP_FAILED : block; }

static void dropping(void) {
    block = anonymous(BYTES);
    fill_pages(block, PAGES, 100);
    CHECK(while_advising(drop, block, BYTES) == block, "%m");
    expect_zeros(block, BYTES, "dropped while it was advised for the first time");
}

static void *grow(void) { return mremap(block, BYTES, 2 * BYTES, MREMAP_MAYMOVE); }

static void growing(void) {
    block = anonymous(BYTES);
    fill_pages(block, PAGES, 200);
    unsigned char *more = while_advising(grow, block, BYTES);
    CHECK(more != MAP_FAILED, "%m");
    expect_pages(more, PAGES, 200, "grown while it was advised for the first time");
    expect_zeros(more + BYTES, BYTES, "what it grew by");
}

// Memory at its old address was advised before.
static void growing_again(void) {
    block = anonymous(BYTES);
    fill_pages(block, PAGES, 300);
    must_advise(block, BYTES);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(block, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == block, "%m");
    fill_pages(block, PAGES, 300);
    unsigned char *more = while_advising(grow, block, BYTES);
    CHECK(more != MAP_FAILED, "%m");
    expect_pages(more, PAGES, 300, "grown while it was advised again");
    expect_zeros(more + BYTES, BYTES, "what it grew by");
}

static void *reallocate(void) { return realloc(block, 2 * BYTES); }

// The whole mapping is advised, as that of a whole process is; so was earlier memory at this address.
static void reallocating(void) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // or the second would lie in malloc's heap
    unsigned char *former = malloc(BYTES), *mapping = former - (uintptr_t)former % PAGE, *whole = mapping + PAGE;
    former[BYTES - 1] = 1;
    fill_pages(whole, PAGES - 1, 400);
    must_advise(mapping, BYTES + PAGE);
    free(former);
    block = malloc(BYTES);
    CHECK(block == former, "it lies somewhere else");
    block[BYTES - 1] = 1;
    fill_pages(whole, PAGES - 1, 400);
    size_t before = (size_t)(whole - block);
    unsigned char *more = while_advising(reallocate, mapping, BYTES + PAGE);
    CHECK(more, "%m");
    expect_pages(more + before, PAGES - 1, 400, "reallocated while it was advised again");
    memset(more + BYTES, 1, BYTES);  // SIGBUS past a segment's end
}

static atomic_bool stop;

// Writes zeros, which must stay, and then other values.
static void *zero_writer(void *unused) {
    (void)unused;
    uint64_t chance = 7;
    unsigned char right[PAGE] = {0};
    while (!stop) {
        size_t p = next_random(&chance) % PAGES;
        memset(block + p * PAGE, 0, PAGE);
        for (int i = 0; i < 50; i++) {
            CHECK(!memcmp(block + p * PAGE, right, PAGE), "page %zu was made zero, and is not", p);
            sched_yield();
        }
        fill(block + p * PAGE, PAGE, 600 + p);
    }
    return NULL;
}

// The same range many times in one call.
static void many_times(void) {
    block = anonymous(BYTES);
    fill_pages(block, PAGES, 600);
    struct iovec ranges[12];
    for (int i = 0; i < 12; i++) ranges[i] = (struct iovec){block + i % 3 * 512 * PAGE, BYTES - i % 3 * 512 * PAGE};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, zero_writer, NULL), "%m");
    for (int round = 0; round < 20; round++) {
        CHECK(!mayfly_advise_all(ranges, 12, 0), "%s", mayfly_merge_error());
        CHECK(!mayfly_unadvise(block, BYTES), "%s", mayfly_merge_error());
    }
    stop = true;
    pthread_join(thread, NULL);
    expect_pages(block, PAGES, 600, "after all");
}

enum { DROPPERS = 3 };
static unsigned char *areas[DROPPERS];
static atomic_ulong drops;

// Keeps dropping parts of memory that another thread advises, writes them anew, and checks all of it.
static void *dropper(void *number) {
    unsigned char *at = areas[(uintptr_t)number];
    uint64_t chance = 1 + (uintptr_t)number;
    while (!stop) {
        size_t first = next_random(&chance) % PAGES, pages = 1 + next_random(&chance) % (PAGES - first);
        CHECK(!madvise(at + first * PAGE, pages * PAGE, MADV_DONTNEED), "%m");
        expect_zeros(at + first * PAGE, pages * PAGE, "dropped by a thread");
        fill_pages(at + first * PAGE, pages, 700 + first);
        expect_pages(at, PAGES, 700, "written anew by a thread");
        drops++;
    }
    return NULL;
}

static void droppers(void) {
    pthread_t threads[DROPPERS];
    for (uintptr_t i = 0; i < DROPPERS; i++) {
        areas[i] = anonymous(BYTES);
        fill_pages(areas[i], PAGES, 700);
        CHECK(!pthread_create(&threads[i], NULL, dropper, (void *)i), "%m");
    }
    for (int round = 0; round < 60 || drops < 200; round++)
        for (int i = 0; i < DROPPERS; i++) {
            must_advise(areas[i], BYTES);
            if (round % 7 == 0) mayfly_unadvise(areas[i], BYTES);  // memory dropped meanwhile is an error here
        }
    stop = true;
    for (int i = 0; i < DROPPERS; i++) pthread_join(threads[i], NULL);
    printf("%lu times dropped\n", atomic_load(&drops));
}

int main(int count, char **words) {
    struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"dropping", dropping},         {"growing", growing},       {"growing again", growing_again},
                 {"reallocating", reallocating}, {"many times", many_times}, {"droppers", droppers}};
    for (size_t i = 0; count > 1 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(words[1], cases[i].name)) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "usage: races CASE\n");
    return 2;
}
