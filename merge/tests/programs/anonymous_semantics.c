// Advised memory must keep anonymous semantics under any allocator: `anonymous_semantics CASE [outages]`. The
// cases that use malloc run under every installed allocator.
// variants: started by the runner
#include "merge_test.h"

#include <malloc.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { PAGES = 2048, BYTES = PAGES * PAGE };

static unsigned char *anonymous(size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%m");
    return at;
}

static bool outages;  // the store may end: then less is shared, with the same semantics

static bool has_gone(int e) {
    return outages && (e == ECONNREFUSED || e == ECONNRESET || e == ETIMEDOUT || e == EPIPE);
}

static void must_advise(void *at, size_t bytes) {
    if (mayfly_advise(at, bytes, 0) && !has_gone(errno)) CHECK(false, "%s: %s", strerror(errno), mayfly_merge_error());
}

// Advised and shared; the contents are those of fill(…, content + page).
static unsigned char *shared(size_t pages, uint64_t content) {
    unsigned char *at = anonymous(pages * PAGE);
    for (size_t p = 0; p < pages; p++) fill(at + p * PAGE, PAGE, content + p);
    must_advise(at, pages * PAGE);
    return at;
}

static void expect_pages(unsigned char *at, size_t pages, uint64_t content, const char *when) {
    for (size_t p = 0; p < pages; p++) expect(at + p * PAGE, PAGE, content + p, when);
}

static void expect_zeros(const unsigned char *at, size_t bytes, const char *when) {
    for (size_t i = 0; i < bytes; i++) CHECK(!at[i], "%s: byte %zu of %zu is %#x and not 0", when, i, bytes, at[i]);
}

static void dropping(void) {
    // Where nothing could be shared MADV_FREE may leave all as it is.
    for (int n = 0; n < (outages ? 1 : 2); n++) {
        int advice = n ? MADV_FREE : MADV_DONTNEED;
        unsigned char *at = shared(PAGES, 100);
        size_t from = 300 * PAGE, bytes = 1000 * PAGE;
        at[400 * PAGE] ^= 1;  // a page that is private again
        CHECK(!madvise(at + from, bytes - 10, advice), "madvise(%d): %m", advice);
        expect_zeros(at + from, bytes, "after madvise");
        expect_pages(at, 300, 100, "in front of what was dropped");
        expect_pages(at + from + bytes, PAGES - 1300, 100 + 1300, "behind what was dropped");
        memset(at + from, 7, bytes);
        must_advise(at, BYTES);
        CHECK(!madvise(at, BYTES, advice), "again: %m");
        // Of private pages MADV_FREE drops none before memory is short.
        if (advice == MADV_DONTNEED) expect_zeros(at, BYTES, "after advising and dropping it again");
        munmap(at, BYTES);
    }
}

static void skip(const char *why) {
    printf("skip: %s\n", why);
    exit(0);
}

// By the number of the system call, and for the process by its descriptor.
static void dropping_by_others(void) {
    unsigned char *at = shared(PAGES, 150);
    CHECK(!syscall(SYS_madvise, at, 100 * PAGE, MADV_DONTNEED), "%m");
    expect_zeros(at, 100 * PAGE, "after madvise by its number");
    expect_pages(at + 100 * PAGE, PAGES - 100, 250, "behind it");
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    pid_t child = fork();
    if (!child) pause();
    int other = syscall(SYS_pidfd_open, child, 0);
    CHECK(self >= 0 && other >= 0, "%m");
    struct iovec parts[] = {{at + 200 * PAGE, 100 * PAGE}, {at + 400 * PAGE, 100 * PAGE}, {at + 600 * PAGE, 100 * PAGE}};
    // Where the kernel allows it, another process's memory at the same address.
    syscall(SYS_process_madvise, other, parts, 3, MADV_DONTNEED, 0);
    expect_pages(at + 100 * PAGE, PAGES - 100, 250, "after another process's was dropped");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    long done = syscall(SYS_process_madvise, self, parts, 2, MADV_DONTNEED, 0);
    if (done < 0 && errno == EINVAL) {
        expect_pages(at + 100 * PAGE, PAGES - 100, 250, "after the kernel refused it");
        skip("a kernel whose process_madvise does not drop the caller's memory (Linux 6.13)");
    }
    CHECK(done == 200 * PAGE, "process_madvise: %ld, %m", done);
    CHECK(process_madvise(self, parts + 2, 1, MADV_DONTNEED, 0) == 100 * PAGE, "%m");
    for (int i = 0; i < 3; i++) expect_zeros(parts[i].iov_base, parts[i].iov_len, "after process_madvise");
    expect_pages(at + 300 * PAGE, 100, 450, "between");
    expect_pages(at + 700 * PAGE, PAGES - 700, 850, "behind");
}

// Guards empty the memory that they are installed in.
static void guarding(void) {
    enum { INSTALL = 102, REMOVE = 103 };
    unsigned char *at = shared(PAGES, 160), *other = anonymous(BYTES);
    bool has_guards = !madvise(other, PAGE, INSTALL);
    int failed = madvise(at + 300 * PAGE, 1000 * PAGE, INSTALL);
    if (!has_guards) {
        CHECK(failed && errno == EINVAL, "%d", failed);
        expect_pages(at, PAGES, 160, "after an unknown advice");
        skip("a kernel without MADV_GUARD_INSTALL (Linux 6.13)");
    }
    CHECK(!failed, "%m");
    char byte;
    struct iovec here = {&byte, 1}, there = {at + 700 * PAGE, 1};
    CHECK(process_vm_readv(getpid(), &here, 1, &there, 1, 0) < 0, "a guard can be read");
    expect_pages(at, 300, 160, "in front of guards");
    expect_pages(at + 1300 * PAGE, PAGES - 1300, 160 + 1300, "behind guards");
    CHECK(!madvise(at + 300 * PAGE, 1000 * PAGE, REMOVE), "%m");
    expect_zeros(at + 300 * PAGE, 1000 * PAGE, "after guards were removed");
}

static void growing(void) {
    unsigned char *at = shared(PAGES, 200);
    unsigned char *more = mremap(at, BYTES, 3 * BYTES, MREMAP_MAYMOVE);
    CHECK(more != MAP_FAILED, "%m");
    expect_pages(more, PAGES, 200, "after it grew");
    expect_zeros(more + BYTES, 2 * BYTES, "what it grew by");
    memset(more + BYTES, 1, 2 * BYTES);
    must_advise(more, 3 * BYTES);
    unsigned char *wall = mmap(more + 3 * BYTES, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    unsigned char *last = mremap(more, 3 * BYTES, 4 * BYTES, 0);
    CHECK(wall == MAP_FAILED || (last == MAP_FAILED && errno == ENOMEM), "it grew over another mapping");
    last = mremap(more, 3 * BYTES, 4 * BYTES, MREMAP_MAYMOVE);
    CHECK(last != MAP_FAILED, "%m");
    expect_pages(last, PAGES, 200, "after it moved");
    expect_zeros(last + 3 * BYTES, BYTES, "what it grew by when it moved");
    CHECK(!madvise(last, 4 * BYTES, MADV_DONTNEED), "%m");
    expect_zeros(last, 4 * BYTES, "after it moved and was dropped");
}

static void moving(void) {
    unsigned char *at = shared(PAGES, 300), *to = anonymous(2 * BYTES);
    at = mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to + BYTES);
    CHECK(at == to + BYTES, "%m");
    expect_pages(at, PAGES, 300, "moved to a place");
    at = mremap(at, BYTES, BYTES / 2, MREMAP_MAYMOVE);
    CHECK(at == to + BYTES, "%m");
    expect_pages(at, PAGES / 2, 300, "made smaller");
    munmap(at + 100 * PAGE, 50 * PAGE);
    CHECK(mremap(at, BYTES / 2, BYTES, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "grew over a hole");
    expect_pages(at, 100, 300, "in front of a hole");
    expect_pages(at + 150 * PAGE, PAGES / 2 - 150, 300 + 150, "behind a hole");
    unsigned char *left = shared(PAGES, 400);
    // Without FIXED the address is a hint, which older C libraries pass on unchanged.
    unsigned char *there = mremap(left, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(there != MAP_FAILED && there != left, "%m");
    expect_pages(there, PAGES, 400, "moved away");
    expect_zeros(left, BYTES, "what stayed");
}

static void protecting(void) {
    unsigned char *at = shared(PAGES, 500);
    CHECK(!mprotect(at + 100 * PAGE, 100 * PAGE, PROT_READ), "%m");
    CHECK(!madvise(at, BYTES, MADV_DONTNEED), "%m");
    expect_zeros(at, BYTES, "read-only memory that was dropped");
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool is_read_only = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3 && start <= (uintptr_t)at + 150 * PAGE &&
            (uintptr_t)at + 150 * PAGE < end)
            is_read_only = rights[1] == '-';
    }
    fclose(maps);
    CHECK(is_read_only, "what was read-only can be written after it was dropped");
    memset(at, 3, 100 * PAGE);
    memset(at + 200 * PAGE, 3, BYTES - 200 * PAGE);
}

static void forking(void) {
    unsigned char *at = shared(PAGES, 600);
    pid_t child = fork();
    if (!child) {
        expect_pages(at, PAGES, 600, "in a child");
        CHECK(!madvise(at, BYTES / 2, MADV_DONTNEED), "%m");
        expect_zeros(at, BYTES / 2, "dropped by a child");
        at = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED, "%m");
        expect_zeros(at + BYTES, BYTES, "grown by a child");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0, "a child ended with %#x", status);
    expect_pages(at, PAGES, 600, "after a child has dropped it");
}

// An advised file mapping reads from the file again, and a file mapped over advised memory is left alone.
static void files(void) {
    unsigned char *at = shared(PAGES, 700);
    munmap(at, BYTES);
    FILE *file = tmpfile();
    unsigned char page[PAGE];
    for (size_t p = 0; p < PAGES; p++) {
        fill(page, PAGE, 800 + p);
        CHECK(fwrite(page, PAGE, 1, file) == 1, "%m");
    }
    fflush(file);
    unsigned char *mapped = mmap(at, BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, fileno(file), 0);
    CHECK(mapped == at, "%m");
    CHECK(!madvise(at, BYTES / 2, MADV_DONTNEED), "%m");
    expect_pages(at, PAGES, 800, "a file that was dropped");
    must_advise(at, BYTES);
    CHECK(!madvise(at, BYTES / 2, MADV_DONTNEED), "%m");
    expect_pages(at, PAGES, 800, "an advised file that was dropped");
    fclose(file);
}

// Every anonymous mapping of the process, as a whole-process mode advises them.
static size_t advise_everything(void) {
    static char text[1 << 20];
    size_t filled = 0, bytes = 0, got;
    FILE *maps = fopen("/proc/self/maps", "r");
    setvbuf(maps, NULL, _IONBF, 0);
    while ((got = fread(text + filled, 1, sizeof text - filled - 1, maps)) > 0) filled += got;
    fclose(maps);
    text[filled] = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end, inode;
        char rights[8], name[16] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu %15s", &start, &end, rights, &inode, name) < 4) continue;
        if (strcmp(rights, "rw-p") || inode || (name[0] && strcmp(name, "[heap]")) || end - start < 256 << 10) continue;
        int failed = mayfly_advise((void *)start, end - start, 0);
        CHECK(!failed || errno == ENOTSUP || errno == ENOMEM || has_gone(errno), "%lx-%lx: %s", start, end, mayfly_merge_error());
        if (!failed) bytes += end - start;
    }
    return bytes;
}

static void write_in(unsigned char *at, size_t bytes, uint64_t content) {
    for (size_t i = 0; i + PAGE <= bytes; i += PAGE) fill(at + i, PAGE, content + i);
    memset(at + bytes / PAGE * PAGE, 9, bytes % PAGE);
}

static void expect_in(unsigned char *at, size_t bytes, uint64_t content, const char *when) {
    for (size_t i = 0; i + PAGE <= bytes; i += PAGE) expect(at + i, PAGE, content + i, when);
}

// Blocks grow, shrink and are freed after all of the process was advised; calloc returns zeros.
static void allocator(void) {
    enum { BLOCKS = 60 };
    unsigned char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    uint64_t seed = 42, contents[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        sizes[i] = (i % 3 == 0 ? 3000 + i * 100 : i % 3 == 1 ? 40 + i : 300 + i * 3) << 10;
        blocks[i] = malloc(sizes[i]);
        contents[i] = 1000 + i % 7;
        write_in(blocks[i], sizes[i], contents[i]);
    }
    size_t advised = 0, wrong = 0;
    for (int round = 0; round < 3; round++) {
        advised += advise_everything();
        for (int step = 0; step < 150; step++) {
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            int i = (seed >> 33) % BLOCKS;
            size_t size = ((seed >> 40) % 6000 + 4) << 10;
            expect_in(blocks[i], sizes[i], contents[i], "before a step");
            switch ((seed >> 60) % 3) {
            case 0:
                blocks[i] = realloc(blocks[i], size);
                expect_in(blocks[i], size < sizes[i] ? size : sizes[i], contents[i], "after realloc");
                break;
            case 1:
                free(blocks[i]);
                blocks[i] = malloc(size);
                break;
            default:
                free(blocks[i]);
                if (step % 2) malloc_trim(0);
                blocks[i] = calloc(size / 16, 16);
                for (size_t b = 0; b < size; b++) wrong += blocks[i][b] != 0;
            }
            sizes[i] = size;
            contents[i] = 1000 + (seed >> 20) % 7;
            write_in(blocks[i], sizes[i], contents[i]);
        }
    }
    CHECK(!wrong, "%zu bytes from calloc are not 0", wrong);
    if (outages) return;
    CHECK(advised > 50 << 20, "only %zu bytes were advised", advised);
    struct mayfly_merge_stats stats;
    CHECK(!mayfly_merge_stats(&stats, sizeof stats), "%m");
    CHECK(stats.merged_pages + stats.inserted_pages > 4000, "only %llu pages are shared",
          (unsigned long long)(stats.merged_pages + stats.inserted_pages));
    printf("%zu MiB advised, %llu pages shared\n", advised >> 20,
           (unsigned long long)(stats.merged_pages + stats.inserted_pages));
}

int main(int count, char **words) {
    struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"dropping", dropping}, {"dropping by others", dropping_by_others}, {"guarding", guarding},
                 {"growing", growing},   {"moving", moving},                         {"protecting", protecting},
                 {"forking", forking},   {"files", files},                           {"allocator", allocator}};
    outages = count > 2 && !strcmp(words[2], "outages");
    for (size_t i = 0; count > 1 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(words[1], cases[i].name)) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "usage: anonymous_semantics CASE\n");
    return 2;
}
