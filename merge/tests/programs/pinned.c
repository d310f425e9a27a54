// Memory that the kernel has pinned for a device keeps what the device writes, whenever it is advised. `pinned CASE
// [hidden]`: io_uring's registered buffers, direct reads, a socket of AF_XDP, pages that a fork shares. `hidden`: as on a
// kernel without UFFDIO_MOVE. Prints "skip: REASON" where the kernel lacks something.
// variants: started by the runner
#include "merge_test.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

enum { PAGES = 2048, FIRST = 600, PINNED = 40 };

static void skip(const char *why) {
    printf("skip: %s\n", why);
    exit(0);
}

// Pages alike in every process, some of them zero, so that all can be merged or dropped.
static void fill_pages(unsigned char *at) {
    for (size_t p = 0; p < PAGES; p++) {
        if (p % 16 == 3)
            memset(at + p * PAGE, 0, PAGE);
        else
            fill(at + p * PAGE, PAGE, 1000 + p);
    }
}

static unsigned char *block(bool huge) {
    unsigned char *at = mmap(NULL, MIB(12), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%m");
    at = (unsigned char *)(((uintptr_t)at + MIB(2) - 1) & ~(MIB(2) - 1));
    madvise(at, PAGES * PAGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    fill_pages(at);
    return at;
}

static void expect_pages(const unsigned char *at, size_t from, size_t to, const char *when) {
    static const unsigned char zeros[PAGE];
    for (size_t p = from; p < to; p++) {
        if (p % 16 == 3)
            CHECK(!memcmp(at + p * PAGE, zeros, PAGE), "%s: page %zu is not zero", when, p);
        else
            expect(at + p * PAGE, PAGE, 1000 + p, when);
    }
}

static void must_advise(unsigned char *at) {
    CHECK(!mayfly_advise(at, PAGES * PAGE, 0), "%m: %s", mayfly_merge_error());
}

// Whether another round is due, of so many: an emulated processor takes seconds for one.
static bool is_due(int round, int rounds) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    static time_t first;
    if (round == 0) first = now.tv_sec;
    return round < rounds && (round < 4 || now.tv_sec - first < 30);
}

static unsigned long long shared_pages(void) {
    struct mayfly_merge_stats stats;
    CHECK(!mayfly_merge_stats(&stats, sizeof stats), "%m");
    return stats.inserted_pages + stats.merged_pages + stats.zero_pages;
}

// A ring of io_uring, without a library: one operation at a time.
static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

static void open_ring(void) {
    struct io_uring_params about = {0};
    ring.fd = syscall(SYS_io_uring_setup, 4, &about);
    if (ring.fd < 0) skip("io_uring is not permitted here");
    size_t bytes = about.sq_off.array + about.sq_entries * 4;
    size_t other = about.cq_off.cqes + about.cq_entries * sizeof *ring.cqes;
    char *sq = mmap(NULL, bytes > other ? bytes : other, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, other, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
    ring.sqes = mmap(NULL, about.sq_entries * sizeof *ring.sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
                     IORING_OFF_SQES);
    CHECK(sq != MAP_FAILED && cq != MAP_FAILED && ring.sqes != MAP_FAILED, "%m");
    ring.sq_tail = (unsigned *)(sq + about.sq_off.tail), ring.sq_mask = (unsigned *)(sq + about.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(sq + about.sq_off.array);
    ring.cq_head = (unsigned *)(cq + about.cq_off.head), ring.cq_tail = (unsigned *)(cq + about.cq_off.tail);
    ring.cq_mask = (unsigned *)(cq + about.cq_off.ring_mask);
    ring.cqes = (struct io_uring_cqe *)(cq + about.cq_off.cqes);
}

static void register_buffer(void *at, size_t bytes) {
    struct iovec part = {at, bytes};
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &part, 1)) {
        if (errno == ENOMEM) skip("ulimit -l is too low for registered buffers");
        CHECK(false, "%m");
    }
}

static void drop_buffer(void) {
    CHECK(!syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0), "%m");
}

// The kernel writes the file's contents into the registered buffer, past this process's page table.
static void read_fixed(int file, void *to, size_t bytes) {
    unsigned tail = *ring.sq_tail, slot = tail & *ring.sq_mask;
    memset(&ring.sqes[slot], 0, sizeof *ring.sqes);
    ring.sqes[slot] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)to, .len = bytes, .user_data = 1};
    ring.sq_array[slot] = slot;
    atomic_store_explicit((_Atomic unsigned *)ring.sq_tail, tail + 1, memory_order_release);
    CHECK(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "%m");
    unsigned head = *ring.cq_head;
    CHECK(atomic_load_explicit((_Atomic unsigned *)ring.cq_tail, memory_order_acquire) != head, "no completion");
    int result = ring.cqes[head & *ring.cq_mask].res;
    atomic_store_explicit((_Atomic unsigned *)ring.cq_head, head + 1, memory_order_release);
    CHECK(result == (int)bytes, "a fixed read returned %d (%s)", result, strerror(result < 0 ? -result : 0));
}

// A file of PINNED pages that no process has in memory.
static int contents(uint64_t id) {
    int file = memfd_create("contents", MFD_CLOEXEC);
    static unsigned char page[PAGE];
    for (int p = 0; p < PINNED; p++) {
        fill(page, PAGE, id + p);
        CHECK(pwrite(file, page, PAGE, (off_t)p * PAGE) == PAGE, "%m");
    }
    return file;
}

static void expect_read(unsigned char *at, uint64_t id, const char *when) {
    for (size_t p = 0; p < PINNED; p++) expect(at + (FIRST + p) * PAGE, PAGE, id + p, when);
}

// Registered before the first call; later calls find it registered as well.
static void before(bool huge) {
    unsigned char *at = block(huge), *pinned = at + FIRST * PAGE;
    open_ring();
    register_buffer(pinned, PINNED * PAGE);
    for (int round = 0; round < 4; round++) {
        must_advise(at);
        int file = contents(7000 + 100 * round);
        read_fixed(file, pinned, PINNED * PAGE);
        expect_read(at, 7000 + 100 * round, "registered before the call");
        expect_pages(at, 0, FIRST, "in front");
        expect_pages(at, FIRST + PINNED, PAGES, "behind");
        if (round == 1) CHECK(!mayfly_unadvise(at, PAGES * PAGE), "%s", mayfly_merge_error());
        close(file);
    }
    // The rest is shared: in a huge page all of it is pinned.
    unsigned long long most = PAGES - (huge ? 2 * 512 : PINNED);
    CHECK(shared_pages() >= most, "only %llu pages are shared, not %llu", shared_pages(), most);
    drop_buffer();
    fill_pages(at);
    must_advise(at);
    expect_pages(at, 0, PAGES, "no longer registered");
}

// Registered in memory that is shared: the kernel gives it pages of its own, which the next call must not take.
static void after(void) {
    unsigned char *at = block(false), *pinned = at + FIRST * PAGE;
    must_advise(at);
    open_ring();
    register_buffer(pinned, PINNED * PAGE);
    for (int round = 0; round < 4; round++) {
        int file = contents(7000);
        if (round != 2) read_fixed(file, pinned, PINNED * PAGE);
        must_advise(at);
        if (round == 3) CHECK(!mayfly_unadvise(at, PAGES * PAGE), "%s", mayfly_merge_error());
        read_fixed(file, pinned, PINNED * PAGE);
        expect_read(at, 7000, "registered after the first call");
        close(file);
        file = contents(9000 + round);
        read_fixed(file, pinned, PINNED * PAGE);
        expect_read(at, 9000 + round, "read again");
        close(file);
    }
    expect_pages(at, 0, FIRST, "in front");
    expect_pages(at, FIRST + PINNED, PAGES, "behind");
}

static atomic_bool stop;
static unsigned char *target;

static void *registers(void *argument) {
    unsigned long *rounds = argument;
    open_ring();
    int files[2] = {contents(7000), contents(8000)};
    for (; !stop; ++*rounds) {
        register_buffer(target + FIRST * PAGE, PINNED * PAGE);
        for (int n = 0; n < 3; n++) {
            read_fixed(files[n & 1], target + FIRST * PAGE, PINNED * PAGE);
            expect_read(target, 7000 + 1000 * (n & 1), "registered during a call");
        }
        // As it was: what is registered next is shared again by then.
        for (size_t p = FIRST; p < FIRST + PINNED; p++) fill(target + p * PAGE, PAGE, 1000 + p);
        drop_buffer();
    }
    return NULL;
}

// Another thread registers, reads and takes back all the time.
static void during(void) {
    target = block(false);
    unsigned long rounds = 0;
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, registers, &rounds), "%m");
    for (int i = 0; is_due(i, 60); i++) {
        must_advise(target);
        if (i % 3 == 1) CHECK(!mayfly_unadvise(target, PAGES * PAGE), "%s", mayfly_merge_error());
        expect_pages(target, 0, FIRST, "in front");
    }
    stop = true;
    pthread_join(thread, NULL);
    expect_pages(target, FIRST + PINNED, PAGES, "behind");
    CHECK(rounds > 3, "only %lu rounds", rounds);
}

static const char *direct_path;
static atomic_ulong reads;

static void *reads_directly(void *argument) {
    int file = open(direct_path, O_RDONLY | O_DIRECT);
    CHECK(file >= 0, "%m");
    size_t first = (size_t)(uintptr_t)argument;
    for (unsigned long n = first; !stop; n += 2) {
        unsigned char *at = target + n % PAGES * PAGE;
        at[0] = 0xAA;
        if (pread(file, at, PAGE, 0) != PAGE) break;
        CHECK(at[0] == 'B' && at[PAGE - 1] == 'B', "direct read %lu was lost", reads);
        reads++;
        fill(at, PAGE, 1000 + n % PAGES);
    }
    close(file);
    return NULL;
}

// Direct reads in flight, all the time.
static void direct(void) {
    int file = open(direct_path, O_RDONLY | O_DIRECT);
    target = block(false);
    if (file < 0 || pread(file, target, PAGE, 0) != PAGE) skip("no direct I/O here");
    close(file);
    fill_pages(target);
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, reads_directly, (void *)i), "%m");
    for (int i = 0; is_due(i, 40); i++) {
        must_advise(target);
        if (i % 10 == 9) CHECK(!mayfly_unadvise(target, PAGES * PAGE), "%s", mayfly_merge_error());
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (!reads) skip("direct reads fail here");
    printf("%lu direct reads\n", reads);
}

// Pages that an ended child shared are shared all the same. While it lives they are left to both, but for zeros.
static void forked(bool lives) {
    unsigned char *at = block(false);
    int pipes[2];
    CHECK(!pipe(pipes), "%m");
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(pipes[1]);
        if (lives) CHECK(read(pipes[0], &byte, 1) == 0, "%m");
        expect_pages(at, 0, PAGES, "in the child");
        _exit(0);
    }
    int status;
    if (!lives) CHECK(waitpid(child, &status, 0) == child && !status, "status %d", status);
    must_advise(at);
    expect_pages(at, 0, PAGES, "after a fork");
    if (lives) {
        CHECK(shared_pages() <= PAGES / 16, "%llu pages are the store's and the child's", shared_pages());
        close(pipes[1]);
        CHECK(waitpid(child, &status, 0) == child && !status, "status %d", status);
        must_advise(at);
        expect_pages(at, 0, PAGES, "after the child's end");
    }
    unsigned long long shared = shared_pages();
    CHECK(shared >= PAGES, "only %llu of %d pages are shared", shared, PAGES);
}

static atomic_bool forks_stop;

static void *forks(void *unused) {
    (void)unused;
    for (int n = 0; !forks_stop; n++) {
        // Without the handlers of pthread_atfork.
        struct clone_args about = {.exit_signal = SIGCHLD};
        pid_t child = n % 3 == 0   ? _Fork()
                      : n % 3 == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                                   : syscall(SYS_clone3, &about, sizeof about);
        if (child == 0) {
            // Not expect: it would end the child with the same status.
            for (size_t p = 0; p < PAGES; p++)
                if (p % 16 != 3 && first_wrong(target + p * PAGE, PAGE, 1000 + p) >= 0) _exit(1);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "a child sees other contents (%d)", status);
    }
    return NULL;
}

// A process forked during a call, without handlers, has the contents.
static void forking(void) {
    target = block(false);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, forks, NULL), "%m");
    for (int i = 0; is_due(i, 30); i++) {
        must_advise(target);
        CHECK(!mayfly_unadvise(target, PAGES * PAGE), "%s", mayfly_merge_error());
    }
    forks_stop = true;
    pthread_join(thread, NULL);
}

// Other threads read the memory all the time: those that meet a page that is being replaced wait.
static void *looks(void *unused) {
    (void)unused;
    while (!stop) expect_pages(target, 0, PAGES, "in another thread");
    return NULL;
}

static void reading(void) {
    target = block(false);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, looks, NULL), "%m");
    for (int i = 0; is_due(i, 20); i++) {
        must_advise(target);
        CHECK(!mayfly_unadvise(target, PAGES * PAGE), "%s", mayfly_merge_error());
    }
    stop = true;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

// As on a kernel before Linux 6.8: UFFDIO_MOVE is an unknown request.
static void hide_move(void) {
    enum { UFFDIO_MOVE_NUMBER = 0xC028AA05u };
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, UFFDIO_MOVE_NUMBER, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "%m");
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), "%m");
}

// What is not to be advised, in one line: read-only memory, which the kernel does not move.
static void refused(void) {
    unsigned char *at = block(false);
    open_ring();
    register_buffer(at + FIRST * PAGE, PINNED * PAGE);
    CHECK(!mprotect(at, PAGES * PAGE, PROT_READ), "%m");
    CHECK(mayfly_advise(at, PAGES * PAGE, 0) && errno == ENOTSUP, "it was advised");
    puts(mayfly_merge_error());
    // Another part of it is not in a buffer.
    CHECK(!mayfly_advise(at, FIRST * PAGE, 0), "%m: %s", mayfly_merge_error());
    expect_pages(at, 0, PAGES, "read-only");
}

int main(int count, char **words) {
    CHECK(count > 1, "usage: pinned CASE");
    const char *name = words[1];
    alarm(100);
    if (count > 2 && !strcmp(words[count - 1], "hidden")) hide_move();
    if (!strcmp(name, "before")) before(false);
    else if (!strcmp(name, "before huge")) before(true);
    else if (!strcmp(name, "after")) after();
    else if (!strcmp(name, "during")) during();
    else if (!strcmp(name, "direct")) direct_path = words[2], direct();
    else if (!strcmp(name, "child lives")) forked(true);
    else if (!strcmp(name, "child has ended")) forked(false);
    else if (!strcmp(name, "forking")) forking();
    else if (!strcmp(name, "reading")) reading();
    else if (!strcmp(name, "refused")) refused();
    else CHECK(0, "no case %s", name);
    return 0;
}
