// Children that are made by clone, past the C library's handlers for fork. `bare_clone CASE WAY` ends with 0, or prints what
// went wrong: contents are right in parent and child, and neither waits for a thread that only the other has.
// variants: started by the runner
#include "merge_test.h"

#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGES = 512, BYTES = PAGES * PAGE, CHILDREN = 60, STACK = 256 << 10 };

// `merged` is advised before any fork, `busy` is merged and made private again all the time.
static unsigned char *merged, *busy;
static bool is_busy, by_instruction;
static atomic_bool stop;
static atomic_long rounds;

static unsigned char *block_of(uint64_t content) {
    unsigned char *block = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(block != MAP_FAILED, "%m");
    for (size_t p = 0; p < PAGES; p++) fill(block + p * PAGE, PAGE, content + p);
    return block;
}

static void expect_block(unsigned char *block, size_t from, uint64_t content, const char *when) {
    for (size_t p = from; p < PAGES; p++) expect(block + p * PAGE, PAGE, content + p, when);
}

// What a child may do while other threads of its parent are anywhere: no function that takes the C library's locks.
static int child(void *unused) {
    (void)unused;
    alarm(30);
    expect_block(merged, 0, 1000, "in a child");
    // Threads wait for pages that are being replaced, but this fork is one that the library cannot see.
    if (!by_instruction) expect_block(busy, 0, 5000, "in a child, memory that is being merged");
    CHECK(!madvise(merged, 8 * PAGE, MADV_DONTNEED), "%m");
    for (size_t i = 0; i < 8 * PAGE; i++) CHECK(!merged[i], "a dropped page has byte %#x", merged[i]);
    merged[9 * PAGE] ^= 1;
    merged[9 * PAGE] ^= 1;
    unsigned char *grown = mremap(merged, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "%m");
    expect_block(grown, 8, 1000, "in a child, grown");
    for (size_t i = BYTES; i < 2 * BYTES; i++) CHECK(!grown[i], "what has grown has byte %#x", grown[i]);
    if (mayfly_advise(grown, BYTES, 0)) {
        // A thread was changing the library's state, and is not here.
        CHECK(is_busy && errno == ENOTSUP && strstr(mayfly_merge_error(), "clone"), "%s", mayfly_merge_error());
        CHECK(mayfly_unadvise(grown, BYTES) && errno == ENOTSUP, "unadvise succeeds");
    } else {
        CHECK(!mayfly_unadvise(grown, BYTES), "%s", mayfly_merge_error());
    }
    expect_block(grown, 8, 1000, "in a child, advised");
    _exit(0);
}

// A system call that no library sees.
static long by_hand(long number, long a, long b) {
#if defined __x86_64__
    register long fifth __asm__("r8") = 0, fourth __asm__("r10") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(0L), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = 0, x3 __asm__("x3") = 0, x4 __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

static pid_t made(const char *way) {
    struct clone_args about = {.exit_signal = SIGCHLD};
    long made = -1;
    if (!strcmp(way, "clone")) {
        static unsigned char *stack;
        if (!stack) stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        made = clone(child, stack + STACK, SIGCHLD, NULL);
    } else if (!strcmp(way, "by number")) made = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    else if (!strcmp(way, "clone3")) made = syscall(SYS_clone3, &about, sizeof about);
    else if (!strcmp(way, "by instruction")) made = by_hand(SYS_clone, SIGCHLD, 0);
    else CHECK(0, "no way %s", way);
    if (made == 0) child(NULL);
    CHECK(made > 0, "%s: %m", way);
    return made;
}

static void must_end_well(pid_t process, int number) {
    int status;
    CHECK(waitpid(process, &status, 0) == process, "%m");
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "child %d ended with status %#x", number, status);
}

// All calls of the parent are this thread's: what the library allocates then lies in its arena of malloc, and a child may
// call malloc although this thread had a lock of it.
static void *merge(void *unused) {
    (void)unused;
    CHECK(!mayfly_advise(merged, BYTES, 0), "%s", mayfly_merge_error());
    while (!stop) {
        CHECK(!mayfly_advise(busy, BYTES, 0), "%s", mayfly_merge_error());
        CHECK(!mayfly_unadvise(busy, BYTES), "%s", mayfly_merge_error());
        rounds++;
    }
    return NULL;
}

int main(int count, char **words) {
    CHECK(count > 2, "usage: bare_clone CASE WAY");
    is_busy = !strcmp(words[1], "busy");
    by_instruction = !strcmp(words[2], "by instruction");
    merged = block_of(1000);
    busy = block_of(5000);
    pthread_t thread;
    if (!is_busy) CHECK(!mayfly_advise(merged, BYTES, 0), "%s", mayfly_merge_error());
    if (is_busy) CHECK(!pthread_create(&thread, NULL, merge, NULL), "%m");
    while (is_busy && rounds < 2) sched_yield();
    for (int n = 0; n < (is_busy ? CHILDREN : 5); n++) {
        must_end_well(made(words[2]), n);
        expect_block(merged, 0, 1000, "in the parent");
    }
    stop = true;
    if (is_busy) pthread_join(thread, NULL);
    expect_block(busy, 0, 5000, "in the parent, afterwards");
    CHECK(!mayfly_advise(merged, BYTES, 0), "%s", mayfly_merge_error());
    expect_block(merged, 0, 1000, "in the parent, afterwards");
    printf("%ld rounds\n", atomic_load(&rounds));
    return 0;
}
