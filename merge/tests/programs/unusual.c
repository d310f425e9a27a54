// Programs that do unusual things around merging. `unusual CASE` ends with 0 on success, or prints the failure.
// variants: started by the runner
#include "merge_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { PAGES = 256 };

static unsigned char *block_of(size_t pages, uint64_t content) {
    unsigned char *block = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(block != MAP_FAILED, "%m");
    for (size_t p = 0; p < pages; p++) fill(block + p * PAGE, PAGE, content + p);
    return block;
}

static void expect_block(unsigned char *block, size_t pages, uint64_t content, const char *when) {
    for (size_t p = 0; p < pages; p++) expect(block + p * PAGE, PAGE, content + p, when);
}

static void must_advise(void *block, size_t pages) {
    CHECK(!mayfly_advise(block, pages * PAGE, 0), "%s: %s", strerror(errno), mayfly_merge_error());
}

static void must_end_well(pid_t child, const char *what) {
    int status;
    CHECK(waitpid(child, &status, 0) == child, "%m");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with status %#x", what, status);
}

// Threads that the kernel writes to while their process is advised: it wakes them, and then writes to the
// ends of their stacks. Run by a user who has only the userfaultfd for user mode.
static atomic_bool threads_stop;
static atomic_long threads_woken;

static void *timed_waiter(void *unused) {
    (void)unused;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    while (!threads_stop) {
        struct timespec when;
        clock_gettime(CLOCK_REALTIME, &when);
        when.tv_nsec += 200000;
        if (when.tv_nsec >= 1000000000) when.tv_nsec -= 1000000000, when.tv_sec++;
        pthread_mutex_lock(&lock);
        pthread_cond_timedwait(&never, &lock, &when);
        pthread_mutex_unlock(&lock);
        char buffer[4096];
        int zero = open("/dev/zero", O_RDONLY);
        CHECK(read(zero, buffer, sizeof buffer) == sizeof buffer, "a read to a stack: %m");
        close(zero);
        atomic_fetch_add(&threads_woken, 1);
    }
    return NULL;
}

static void threads(void) {
    enum { THREADS = 6 };
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&all[i], NULL, timed_waiter, NULL), "%m");
    unsigned char *block = block_of(2048, 9000);
    for (int round = 0; round < 60; round++) {
        block[(round % 2048) * PAGE] ^= 1;
        FILE *maps = fopen("/proc/self/maps", "r");
        char line[512];
        while (fgets(line, sizeof line, maps)) {
            unsigned long start, end, inode;
            char rights[8], name[64] = "";
            if (sscanf(line, "%lx-%lx %7s %*s %*s %lu %63s", &start, &end, rights, &inode, name) < 4) continue;
            if (strcmp(rights, "rw-p") || end - start < 256 << 10 || !strncmp(name, "[stack", 6)) continue;
            int failed = mayfly_advise((void *)start, end - start, MAYFLY_ADVISE_NO_SYSCALLS);
            CHECK(!failed || errno == ENOTSUP || errno == ENOMEM, "%lx-%lx: %s", start, end, mayfly_merge_error());
        }
        fclose(maps);
    }
    threads_stop = true;
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    for (int round = 0; round < 60; round++) block[(round % 2048) * PAGE] ^= 1;
    expect_block(block, 2048, 9000, "with threads that wake");
    printf("woken %ld times\n", atomic_load(&threads_woken));
}

// Daemons close all files. Files that they open then get the numbers of the library's: none of them may be
// touched.
static void closed_files(void) {
    unsigned char *block = block_of(PAGES, 1000);
    must_advise(block, PAGES);
    for (int fd = 3; fd < 100; fd++) close(fd);
    enum { PAIRS = 20 };
    int pairs[PAIRS][2];
    for (int i = 0; i < PAIRS; i++) CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pairs[i]), "%m");
    unsigned char *more = block_of(PAGES, 5000);
    int result = mayfly_advise(more, PAGES * PAGE, 0);
    if (result) result = mayfly_advise(more, PAGES * PAGE, 0);
    for (int i = 0; i < PAIRS; i++)
        for (int side = 0; side < 2; side++) {
            char byte;
            CHECK(recv(pairs[i][side], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN,
                  "the library used file %d, which is the program's", pairs[i][!side]);
        }
    CHECK(!result, "after its files were closed: %s", mayfly_merge_error());
    expect_block(block, PAGES, 1000, "with its files closed");
    expect_block(more, PAGES, 5000, "with its files closed");
}

// Parent and child with the same process id, each 1 in a namespace of its own (needs `unshare --pid --fork`).
static void same_pid(void) {
    CHECK(getpid() == 1, "start me under unshare --pid --fork");
    unsigned char *block = block_of(PAGES, 1000);
    must_advise(block, PAGES);
    CHECK(!unshare(CLONE_NEWPID), "%m");
    pid_t child = fork();
    if (child == 0) {
        CHECK(getpid() == 1, "pid %d", getpid());
        for (size_t p = 0; p < PAGES; p++) fill(block + p * PAGE, PAGE, 3000 + p);
        for (int i = 0; i < 20; i++) {
            block[i * PAGE] ^= 0xff;
            must_advise(block, PAGES);
            block[i * PAGE] ^= 0xff;
        }
        must_advise(block, PAGES);
        expect_block(block, PAGES, 3000, "in the child");
        _exit(0);
    }
    for (int i = 0; i < 40; i++) {
        expect_block(block, PAGES, 1000, "in the parent");
        block[7 * PAGE + 9] ^= 1;
        block[7 * PAGE + 9] ^= 1;
        usleep(500);
    }
    must_end_well(child, "the child with its parent's pid");
    must_advise(block, PAGES);
    expect_block(block, PAGES, 1000, "in the parent, afterwards");
}

// Memory that a child must not see is refused. Prints which kinds are lost.
static void kept_from_children(void) {
    unsigned char *wiped = block_of(PAGES, 1000), *absent = block_of(PAGES, 2000);
    CHECK(!madvise(wiped, PAGES * PAGE, MADV_WIPEONFORK) && !madvise(absent, PAGES * PAGE, MADV_DONTFORK), "%m");
    mayfly_advise(wiped, PAGES * PAGE, 0);
    mayfly_advise(absent, PAGES * PAGE, 0);
    expect_block(wiped, PAGES, 1000, "in the parent");
    pid_t child = fork();
    if (child == 0) {
        size_t seen = 0;
        for (size_t i = 0; i < PAGES * PAGE; i++) seen += wiped[i] != 0;
        unsigned char residency;
        bool unmapped = mincore(absent, PAGE, &residency) && errno == ENOMEM;
        printf("%s\n", !seen && unmapped ? "0 of 2 kinds are lost" : "WIPEONFORK or DONTFORK is lost");
        fflush(stdout);
        _exit(0);
    }
    must_end_well(child, "the child");
}

// Another thread begins its first call after the fork has begun, so that handlers which the call registers
// come too late for this fork. The child must not wait for that call.
enum { MANY = 16384 };
static atomic_bool has_begun;
static int files_before;

static void *first_caller(void *block) {
    while (!has_begun) sched_yield();
    must_advise(block, MANY);
    return NULL;
}

static void begin_first_call(void) {
    if (has_begun) return;
    has_begun = true;
    while (open_files() <= files_before) sched_yield();  // until it is connected to the store
}

static void first_call(void) {
    unsigned char *one = block_of(MANY, 1000), *two = block_of(PAGES, 1000);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, first_caller, one), "%m");
    files_before = open_files();
    CHECK(!pthread_atfork(begin_first_call, NULL, NULL), "%m");
    pid_t child = fork();
    if (child == 0) {
        alarm(50);
        must_advise(two, PAGES);
        expect_block(two, PAGES, 1000, "in the child");
        pid_t grandchild = fork();
        if (grandchild == 0) {
            alarm(50);
            must_advise(two, PAGES);
            _exit(0);
        }
        must_end_well(grandchild, "the child's child");
        _exit(0);
    }
    must_end_well(child, "a child that was forked during the first call");
    pthread_join(thread, NULL);
    expect_block(one, MANY, 1000, "in the parent");
}

static unsigned char *rung;
static atomic_ulong rings;

static void ring(int number) {
    (void)number;
    // Writes to memory that is being advised, as handlers of garbage collectors do.
    rung[(rings % PAGES) * PAGE + 8]++;
    rings++;
}

static void signals(void) {
    rung = block_of(PAGES, 1000);
    struct sigaction action = {.sa_handler = ring};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, NULL);
    unsigned char *other = block_of(PAGES, 9000);
    for (int i = 0; i < 300 || rings < 1000; i++) {
        // All of it is frozen both times.
        must_advise(rung, PAGES);
        CHECK(!mayfly_unadvise(rung, PAGES * PAGE), "%s", mayfly_merge_error());
        must_advise(other, PAGES);
    }
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    unsigned long seen = 0;
    for (size_t p = 0; p < PAGES; p++) {
        unsigned char page[PAGE];
        fill(page, PAGE, 1000 + p);
        seen += (unsigned char)(rung[p * PAGE + 8] - page[8]);
    }
    CHECK(seen % 256 == rings % 256, "%lu signals wrote, %lu of their writes are there (modulo 256)", rings, seen);
    expect_block(other, PAGES, 9000, "under signals");
}

static atomic_bool stop;

static void *allocator(void *argument) {
    uint64_t state = (uintptr_t)argument;
    while (!stop) {
        size_t size = 1 + next_random(&state) % 40000;
        unsigned char *object = malloc(size);
        fill(object, size, state);
        expect(object, size, state, "a thread's object");
        free(object);
    }
    return NULL;
}

// All memory of the process, as the preload mode may advise it: the library's own data, other threads' stacks
// and heaps.
static void everything(void) {
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], NULL, allocator, (void *)(i + 1));
    unsigned char *block = block_of(PAGES, 1000);
    int merged = 0;
    for (int round = 0; round < 3; round++) {
        FILE *maps = fopen("/proc/self/maps", "r");
        static char lines[600][160];
        int count = 0;
        while (count < 600 && fgets(lines[count], sizeof lines[0], maps)) count++;
        fclose(maps);
        for (int i = 0; i < count; i++) {
            unsigned long start, end;
            char rights[5];
            if (sscanf(lines[i], "%lx-%lx %4s", &start, &end, rights) != 3 || rights[0] != 'r') continue;
            merged += mayfly_advise((void *)start, end - start, 0) == 0;
        }
    }
    CHECK(merged > 3, "only %d mappings were merged", merged);
    stop = true;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    expect_block(block, PAGES, 1000, "with everything advised");
    printf("%d mappings advised\n", merged);
}

// Too few files, too little address space, too small files: an error, not a crash, and the contents right.
static void limits(int which, rlim_t limit) {
    unsigned char *block = block_of(2048, 1000);
    struct rlimit small = {limit, limit};
    CHECK(!setrlimit((__rlimit_resource_t)which, &small), "%m");
    int result = mayfly_advise(block, 2048 * PAGE, 0);
    int number = errno;
    expect_block(block, 2048, 1000, "under a limit");
    const char *line = mayfly_merge_error();
    CHECK(result == 0 || strlen(line) > 10, "errno %d, but the line is `%s`", number, line);
    if (!result) CHECK(!mayfly_unadvise(block, 2048 * PAGE) || strlen(mayfly_merge_error()) > 10, "no line");
    expect_block(block, 2048, 1000, "under a limit, unadvised");
    printf("%s\n", result ? line : "merged all the same");
}

static unsigned char *counted;
static unsigned long counts[PAGES];

static void *counter(void *argument) {
    (void)argument;
    for (unsigned long n = 0; !stop; n++) {
        size_t page = n * 7 % PAGES;
        ++*(volatile uint64_t *)(counted + page * PAGE + 64);
        counts[page]++;
    }
    return NULL;
}

// MAYFLY_ADVISE_QUIET is a promise about one call of mayfly_advise. Later calls, of unadvise too, must hold
// writers off.
static void quiet_once(void) {
    counted = block_of(PAGES, 1000);
    for (size_t p = 0; p < PAGES; p++) *(uint64_t *)(counted + p * PAGE + 64) = 0;
    CHECK(!mayfly_advise(counted, PAGES * PAGE, MAYFLY_ADVISE_QUIET), "%s", mayfly_merge_error());
    for (int round = 0; round < 150; round++) {
        stop = false;
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, counter, NULL), "%m");
        usleep(300);
        CHECK(!mayfly_unadvise(counted, PAGES * PAGE), "%s", mayfly_merge_error());
        stop = true;
        pthread_join(thread, NULL);
        for (size_t p = 0; p < PAGES; p++) {
            uint64_t is = *(uint64_t *)(counted + p * PAGE + 64);
            CHECK(is == counts[p], "page %zu counted to %lu, not %lu: updates were lost in unadvise", p, is, counts[p]);
        }
        CHECK(!mayfly_advise(counted, PAGES * PAGE, MAYFLY_ADVISE_QUIET), "%s", mayfly_merge_error());
    }
}

// The old address of moved memory, and of unmapped memory, holds other contents now.
static void places(void) {
    unsigned char *one = block_of(PAGES, 1000), *two = block_of(PAGES, 2000);
    must_advise(one, PAGES);
    must_advise(two, PAGES);
    unsigned char *room = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    CHECK(mremap(one, PAGES * PAGE, PAGES * PAGE, fixed, room) == room, "%m");
    CHECK(mremap(two, PAGES * PAGE, PAGES * PAGE, fixed, one) == one, "%m");
    must_advise(one, PAGES);
    must_advise(room, PAGES);
    expect_block(one, PAGES, 2000, "moved");
    expect_block(room, PAGES, 1000, "moved");
    CHECK(mmap(one, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == one, "%m");
    for (size_t p = 0; p < PAGES; p++) fill(one + p * PAGE, PAGE, 3000 + p);
    must_advise(one, PAGES);
    expect_block(one, PAGES, 3000, "mapped anew");
    // After unadvise it is ordinary memory: dropped pages are zero, and growth is zero.
    CHECK(!mayfly_unadvise(one, PAGES * PAGE) && !madvise(one, 8 * PAGE, MADV_DONTNEED), "%s", mayfly_merge_error());
    for (size_t i = 0; i < 8 * PAGE; i++) CHECK(!one[i], "dropped after unadvise, byte %zu is %#x", i, one[i]);
    expect_block(one + 8 * PAGE, PAGES - 8, 3008, "unadvised");
    CHECK(!mayfly_unadvise(room, PAGES * PAGE), "%s", mayfly_merge_error());
    unsigned char *grown = mremap(room, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "%m");
    expect_block(grown, PAGES, 1000, "grown");
    for (size_t i = PAGES * PAGE; i < 2 * PAGES * PAGE; i++) CHECK(!grown[i], "what has grown is not zero");
}

int main(int count, char **words) {
    CHECK(count > 1, "usage: unusual CASE");
    const char *name = words[1];
    alarm(60);
    if (!strcmp(name, "closed files")) closed_files();
    else if (!strcmp(name, "same pid")) same_pid();
    else if (!strcmp(name, "kept from children")) kept_from_children();
    else if (!strcmp(name, "signals")) signals();
    else if (!strcmp(name, "everything")) everything();
    else if (!strcmp(name, "places")) places();
    else if (!strcmp(name, "quiet once")) quiet_once();
    else if (!strcmp(name, "few files")) limits(RLIMIT_NOFILE, 6);
    else if (!strcmp(name, "little address space")) limits(RLIMIT_AS, 24 << 20);
    else if (!strcmp(name, "small files")) limits(RLIMIT_FSIZE, 64 << 10);
    else if (!strcmp(name, "threads")) threads();
    else if (!strcmp(name, "first call")) first_call();
    else CHECK(0, "no case %s", name);
    return 0;
}
