// One process of the random test: regions full of known contents are advised, unadvised, rewritten, moved, dropped and
// forked in random order, while threads keep counting in the same pages, by stores and by read(2). Every byte has an
// expected value: a content number per page, and one counter per page and thread. A lost update, a wrong byte, an EFAULT
// or an unexpected error ends the program with status 1, the seed and the last operations.
//
// usage: random_worker SEED OPERATIONS [trace] [outages] [full] [pressure] [stores] [writers=N] [progress=FILE:SLOT]
//   outages   the store may end: errors that report this are right
//   full      the store may be full: ENOSPC is right
//   pressure  pages are also swapped out
//   stores    threads write by stores only, and calls set the flag for that (for users who may not hold system calls off)
//   progress  a file with one 8-byte operation counter per slot
// stdout: one line `key=value ...`
// variants: started by the runner
#include "merge_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { REGIONS = 5, THREADS = 4, MAX_PAGES = 1536, POOL = 200, FIRST_COUNTER = 32 };

struct region {
    unsigned char *base;
    size_t pages;
    bool file, locked_out;  // a private file mapping; read-only or unreadable just now: writers keep away
    uint64_t content[MAX_PAGES];
    uint64_t counted[MAX_PAGES][THREADS];  // the counters' expected values; each thread owns one
};

static struct region *regions;
// Read-locked by threads that need the regions to stay in place; write-locked to move or rewrite them.
static pthread_rwlock_t layout;
static int writers = 2, pipes[THREADS][2], template_file = -1;
static bool trace, outages, full, pressure, stores, in_child;
static atomic_bool stop;
static atomic_ulong bumps, failed_calls;
static uint64_t seed, chance, operations, done;
static atomic_ulong *progress;
static char last[24][160];
static unsigned reported;

static void say(const char *format, ...) {
    char *line = last[reported++ % 24];
    int n = snprintf(line, 24, "%s%llu: ", in_child ? "child " : "", (unsigned long long)done);
    va_list list;
    va_start(list, format);
    vsnprintf(line + n, 160 - n, format, list);
    va_end(list);
    if (trace) fprintf(stderr, "[%d] %s\n", getpid(), line);
}

#define FAIL(...) (report(__LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))
static void report(int line) {
    fprintf(stderr, "random_worker: pid %d seed %llu, after:\n", getpid(), (unsigned long long)seed);
    for (unsigned i = reported < 24 ? 0 : reported - 24; i < reported; i++) fprintf(stderr, "  %s\n", last[i % 24]);
    fprintf(stderr, "random_worker.c:%d: not so: ", line);
}

static uint64_t pick(uint64_t below) { return next_random(&chance) % below; }

// A page's contents, counters aside: a value of the content's mixed with one of the word's. Content 0 is
// zeros.
static uint64_t word_values[512];

static uint64_t value_of(uint64_t content) { return content * 0x9e3779b97f4a7c15u; }

static bool is_counter(size_t word) { return word >= FIRST_COUNTER && word < FIRST_COUNTER + THREADS; }

static void fill_page(void *page, uint64_t content) {
    uint64_t value = value_of(content), *words = page;
    if (!content) return (void)memset(page, 0, PAGE);
    for (size_t i = 0; i < 512; i++) words[i] = value ^ word_values[i];
    memset(words + FIRST_COUNTER, 0, THREADS * sizeof *words);
}

static void check_page(struct region *r, size_t p, const char *when) {
    uint64_t right[512];
    const uint64_t *words = (const uint64_t *)(r->base + p * PAGE);
    fill_page(right, r->content[p]);
    memcpy(right + FIRST_COUNTER, r->counted[p], THREADS * sizeof *right);
    for (size_t i = 0; memcmp(words, right, PAGE) && i < 512; i++)
        if (words[i] != right[i])
            FAIL("%s: region %ld page %zu (%p) word %zu is %#llx, not %#llx%s", when, (long)(r - regions), p,
                 (void *)words, i, (unsigned long long)words[i], (unsigned long long)right[i],
                 is_counter(i) ? " (a counter)" : "");
}

static void check_all(const char *when) {
    for (struct region *r = regions; r < regions + REGIONS; r++)
        for (size_t p = 0; p < r->pages; p++) check_page(r, p, when);
}

// Runs of pages as in real programs: equal in every process, private, alternating, zero, all equal.
static uint64_t new_content(unsigned pattern, size_t p) {
    switch (pattern) {
        case 0: return 1 + (p + seed % 3) % POOL;
        case 1: return p % 2 ? 1 + p % POOL : next_random(&chance) | 1ull << 40;
        case 2: return 0;
        case 3: return 7;
        case 4: return p % 16 ? 1 + p % POOL : next_random(&chance) | 1ull << 40;
        default: return pick(3) ? 1 + pick(POOL) : next_random(&chance) | 1ull << 40;
    }
}

static void rewrite(struct region *r, size_t first, size_t pages, unsigned pattern) {
    for (size_t p = first; p < first + pages; p++) {
        r->content[p] = new_content(pattern, p);
        memset(r->counted[p], 0, sizeof r->counted[p]);
        fill_page(r->base + p * PAGE, r->content[p]);
    }
}

static void zeroed(struct region *r, size_t first, size_t pages) {
    memset(r->content + first, 0, pages * sizeof *r->content);
    memset(r->counted + first, 0, pages * sizeof *r->counted);
}

static void map_region(struct region *r, void *where) {
    int flags = MAP_PRIVATE | (where ? MAP_FIXED : 0), huge = pick(4) == 0;
    r->file = pick(6) == 0;
    r->pages = 1 + (huge ? 511 + pick(MAX_PAGES - 512) : pick(300));
    r->locked_out = false;
    zeroed(r, 0, r->pages);
    if (where && r->pages > MAX_PAGES) r->pages = MAX_PAGES;
    if (r->file) {
        for (size_t p = 0; p < r->pages; p++) r->content[p] = 1 + p % POOL;
        r->base = mmap(where, r->pages * PAGE, PROT_READ | PROT_WRITE, flags, template_file, 0);
    } else {
        r->base = mmap(where, r->pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    }
    if (r->base == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    if (huge) madvise(r->base, r->pages * PAGE, MADV_HUGEPAGE);
    if (pick(8)) rewrite(r, 0, r->pages, (unsigned)pick(6));  // else: never touched, or as in the file
}

// Counts in random pages, and detects at once that an earlier count was lost.
static void *writer(void *argument) {
    size_t t = (size_t)(uintptr_t)argument;
    uint64_t state = seed * 31 + t + (uint64_t)getpid();
    while (!stop) {
        pthread_rwlock_rdlock(&layout);
        for (int n = 0; n < 24; n++) {
            struct region *r = &regions[next_random(&state) % REGIONS];
            if (r->locked_out) continue;
            // Mostly a few pages, so that most of the region is left to be merged.
            size_t p = next_random(&state) % r->pages;
            if (next_random(&state) % 16) p = p % (r->pages / 32 + 1) * 32 % r->pages;
            uint64_t *word = (uint64_t *)(r->base + p * PAGE) + FIRST_COUNTER + t, was = *(volatile uint64_t *)word;
            if (was != r->counted[p][t])
                FAIL("a count was lost: region %ld page %zu (%p) thread %zu: %llu, not %llu", (long)(r - regions), p,
                     (void *)word, t, (unsigned long long)was, (unsigned long long)r->counted[p][t]);
            if (t % 2 && !stores) {
                uint64_t next = was + 1;
                if (write(pipes[t][1], &next, 8) != 8) FAIL("write to a pipe: %s", strerror(errno));
                ssize_t got = read(pipes[t][0], word, 8);
                if (got != 8) FAIL("read(2) into a page: %s", got < 0 ? strerror(errno) : "short");
            } else {
                *(volatile uint64_t *)word = was + 1;
            }
            r->counted[p][t] = was + 1;
            atomic_fetch_add_explicit(&bumps, 1, memory_order_relaxed);
        }
        pthread_rwlock_unlock(&layout);
        // Other processes need the processors, too.
        if (next_random(&state) % 4 == 0) usleep(200);
    }
    return NULL;
}

// Whether a call of the library may have failed in this way.
static void judge(const char *what, int result) {
    if (result == 0) return;
    int e = errno;
    const char *line = mayfly_merge_error();
    atomic_fetch_add(&failed_calls, 1);
    bool disconnected = e == ECONNREFUSED || e == ECONNRESET || e == ETIMEDOUT || e == EPIPE;
    if ((disconnected && outages) || (e == ENOSPC && full)) return;
    FAIL("%s: %s: %s", what, strerror(e), line);
}

static unsigned flags_of(bool quiet) {
    return quiet ? MAYFLY_ADVISE_QUIET : stores ? MAYFLY_ADVISE_NO_SYSCALLS : 0;
}

static void advise(struct region *r, size_t first, size_t pages) {
    bool quiet = r->file || (r->locked_out && first % 2);
    unsigned char *start = r->base + first * PAGE;
    size_t half = pages / 2 * PAGE;
    if (pages % 3) {
        judge("mayfly_advise", mayfly_advise(start, pages * PAGE, flags_of(quiet)));
    } else {
        struct iovec halves[] = {{start + half, pages * PAGE - half}, {start, half}};
        judge("mayfly_advise_all", mayfly_advise_all(halves, 2, flags_of(quiet)));
    }
}

// A second thread that advises, so that calls overlap with one another and with forks.
static void *adviser(void *argument) {
    (void)argument;
    uint64_t state = seed * 97 + (uint64_t)getpid();
    while (!stop) {
        pthread_rwlock_rdlock(&layout);
        struct region *r = &regions[next_random(&state) % REGIONS];
        size_t first = next_random(&state) % r->pages, pages = 1 + next_random(&state) % (r->pages - first);
        if (!r->file && !r->locked_out) advise(r, first, pages);
        pthread_rwlock_unlock(&layout);
        for (int i = 0; i < 20 && !stop; i++) usleep(500);
    }
    return NULL;
}

static pthread_t threads[THREADS + 1];
static int started;

static void start_threads(void) {
    pthread_rwlockattr_t kind;
    pthread_rwlockattr_init(&kind);
    pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&layout, &kind);
    stop = false;
    started = 0;
    for (int t = 0; t < writers; t++) {
        if (pipe(pipes[t])) FAIL("pipe: %s", strerror(errno));
        if (pthread_create(&threads[started++], NULL, writer, (void *)(uintptr_t)t)) FAIL("pthread_create");
    }
    if (writers && pthread_create(&threads[started++], NULL, adviser, NULL)) FAIL("pthread_create");
}

static void stop_threads(void) {
    stop = true;
    while (started) pthread_join(threads[--started], NULL);
    for (int t = 0; t < writers; t++) close(pipes[t][0]), close(pipes[t][1]);
}

static void operate(uint64_t count);

// Another thread may have been between a count and its entry in the model, or in the middle of an advice.
static void become_child(void) {
    in_child = true;
    started = 0;
    for (int t = 0; t < writers; t++) close(pipes[t][0]), close(pipes[t][1]);
    for (struct region *r = regions; r < regions + REGIONS; r++)
        for (size_t p = 0; p < r->pages; p++)
            for (int t = 0; t < writers; t++) {
                uint64_t is = ((uint64_t *)(r->base + p * PAGE))[FIRST_COUNTER + t];
                if (is == r->counted[p][t] + 1) r->counted[p][t] = is;
            }
    check_all("in a child, at once");
    chance ^= (uint64_t)getpid();
    writers = (int)pick(2) * writers;
    start_threads();
    operate(6 + pick(10));
    stop_threads();
    check_all("in a child, at its end");
}

static void fork_child(void) {
    pid_t pid = fork();
    if (pid < 0) FAIL("fork: %s", strerror(errno));
    if (pid == 0) {
        if (progress) progress = NULL;
        unsigned end = (unsigned)pick(4);
        become_child();
        if (end == 0) kill(getpid(), SIGKILL);
        if (end == 1) execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    bool killed = pick(3) == 0;
    if (killed) usleep((useconds_t)pick(5000)), kill(pid, SIGKILL);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) FAIL("waitpid: %s", strerror(errno));
    bool right = WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL;
    if (!right) FAIL("a child ended with status %#x", status);
}

static void move_region(struct region *r) {
    size_t size = r->pages * PAGE;
    void *place = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *moved = mremap(r->base, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (moved == MAP_FAILED) {
        // Old kernels move one mapping at a time; a region that is shared in part has several.
        munmap(place, size);
        say("  mremap: %s", strerror(errno));
        return;
    }
    r->base = moved;
}

// How many mappings there are; how many files of the store they are of.
static int mappings(int *store_files) {
    int lines = 0, files = 0;
    char line[512];
    static unsigned long seen[4096];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, maps)) {
        lines++;
        unsigned long inode = 0;
        if (!strstr(line, "mayfly") || sscanf(line, "%*s %*s %*s %*s %lu", &inode) != 1) continue;
        int i = 0;
        while (i < files && seen[i] != inode) i++;
        if (i == files && files < 4096) seen[files++] = inode;
    }
    fclose(maps);
    *store_files = files;
    return lines;
}

static void count_mappings(int files_before) {
    int store_files, lines = mappings(&store_files), files = open_files();
    // A descriptor for each mapped file, a connection, and a userfaultfd: not more with every call.
    if (files_before && files > files_before + store_files + 12)
        FAIL("%d files are open, %d when it began; %d of the store are mapped", files, files_before, store_files);
    size_t pages = 0;
    for (int i = 0; i < REGIONS; i++) pages += regions[i].pages;
    // A mapping for each page is the worst that shuffled contents can do.
    if ((size_t)lines > 200 + pages) FAIL("%d mappings for %zu pages", lines, pages);
}

static void operation(void) {
    struct region *r = &regions[pick(REGIONS)];
    size_t first = pick(r->pages), pages = pick(3) ? 1 + pick(r->pages - first) : r->pages - first, size;
    if (pick(3) == 0) first = 0, pages = r->pages;
    unsigned char *at = r->base + first * PAGE;
    unsigned kind = (unsigned)pick(100), pattern = (unsigned)pick(6);
    size = pages * PAGE;
    // In most operations writers and the adviser hold still; not while the process forks.
    bool forks = kind >= 92 && kind < 95 && !in_child, apart = !forks && (kind >= 44 || r->file);
    if (apart) pthread_rwlock_wrlock(&layout);
    if (kind < 32) {
        say("advise region %ld pages %zu+%zu", (long)(r - regions), first, pages);
        advise(r, first, pages);
    } else if (kind < 38) {
        say("advise_begin region %ld pages %zu+%zu", (long)(r - regions), first, pages);
        int64_t ticket = mayfly_advise_begin(at, size, flags_of(r->file));
        if (ticket > 0) {
            int result = mayfly_advise_wait(ticket, (int)pick(2));
            while (result && errno == ETIMEDOUT) result = mayfly_advise_wait(ticket, outages ? 100 : -1);
            judge("mayfly_advise_wait", result);
        } else {
            judge("mayfly_advise_begin", -1);
        }
    } else if (kind < 44) {
        say("unadvise region %ld pages %zu+%zu", (long)(r - regions), first, pages);
        judge("mayfly_unadvise", mayfly_unadvise(at, size));
    } else if (kind < 60) {
        say("rewrite region %ld pages %zu+%zu pattern %u", (long)(r - regions), first, pages, pattern);
        rewrite(r, first, pages, pattern);
    } else if (kind < 66) {
        say("check everything");
        check_all("between operations");
        count_mappings(0);
    } else if (kind < 70) {
        say("unadvise and drop region %ld pages %zu+%zu", (long)(r - regions), first, pages);
        judge("mayfly_unadvise", mayfly_unadvise(at, size));
        // Private copies are anonymous, of file mappings too; of those the untouched pages may come back from the file.
        if (!r->file) {
            madvise(at, size, MADV_DONTNEED);
            zeroed(r, first, pages);
        }
    } else if (kind < 75) {
        say("move region %ld of %zu pages", (long)(r - regions), r->pages);
        move_region(r);
    } else if (kind < 79) {
        say("unmap region %ld of %zu pages", (long)(r - regions), r->pages);
        void *same = pick(2) ? r->base : NULL;
        munmap(r->base, r->pages * PAGE);
        size_t had = r->pages;
        // At the same place if no neighbour can interfere.
        map_region(r, NULL);
        if (same && r->pages <= had) {
            void *moved = mremap(r->base, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, same);
            if (moved != MAP_FAILED) r->base = moved;
        }
    } else if (kind < 83) {
        int advice = (int[]){MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE, MADV_COLD}[pick(4)];
        say("madvise %d region %ld pages %zu+%zu", advice, (long)(r - regions), first, pages);
        madvise(at, size, advice);
    } else if (kind < 86 && pressure) {
        say("page out region %ld pages %zu+%zu", (long)(r - regions), first, pages);
        madvise(at, size, MADV_PAGEOUT);
    } else if (kind < 89) {
        say("read-only region %ld pages %zu+%zu, advised", (long)(r - regions), first, pages);
        r->locked_out = true;
        if (mprotect(at, size, PROT_READ)) FAIL("mprotect: %s", strerror(errno));
        advise(r, first, pages);
        if (mprotect(at, size, PROT_READ | PROT_WRITE)) FAIL("mprotect: %s", strerror(errno));
        r->locked_out = false;
    } else if (kind < 92) {
        say("spawn");
        char *words[] = {"true", NULL};
        pid_t pid;
        if (posix_spawn(&pid, "/bin/true", NULL, NULL, words, NULL) == 0) waitpid(pid, NULL, 0);
    } else if (forks) {
        say("fork");
        fork_child();
    } else if (kind < 97 && !in_child && writers) {
        pthread_rwlock_unlock(&layout);
        apart = false;
        say("threads end and start");
        stop_threads();
        check_all("with no thread");
        start_threads();
    } else {
        say("write the same again: region %ld pages %zu+%zu", (long)(r - regions), first, pages);
        for (size_t i = 0; i < size; i += 512) {
            volatile unsigned char *byte = at + i;
            *byte = *byte;
        }
    }
    if (apart) pthread_rwlock_unlock(&layout);
}

static void operate(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        operation();
        done++;
        if (progress) atomic_fetch_add(progress, 1);
    }
}

int main(int count, char **words) {
    if (count < 3) return fprintf(stderr, "usage: random_worker SEED OPERATIONS [words]\n"), 2;
    seed = strtoull(words[1], NULL, 10);
    operations = strtoull(words[2], NULL, 10);
    chance = seed;
    for (size_t i = 0; i < 512; i++) word_values[i] = (i + 1) * 0xc2b2ae3d27d4eb4fu;
    for (int i = 3; i < count; i++) {
        char *value = strchr(words[i], '=');
        trace |= !strcmp(words[i], "trace");
        outages |= !strcmp(words[i], "outages");
        full |= !strcmp(words[i], "full");
        pressure |= !strcmp(words[i], "pressure");
        stores |= !strcmp(words[i], "stores");
        if (!strncmp(words[i], "writers=", 8)) writers = atoi(value + 1);
        if (!strncmp(words[i], "progress=", 9)) {
            char *slot = strrchr(value, ':');
            *slot = 0;
            int fd = open(value + 1, O_RDWR | O_CLOEXEC);
            progress = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (progress == MAP_FAILED) FAIL("%s: %s", value + 1, strerror(errno));
            progress += atoi(slot + 1);
            close(fd);
        }
    }
    // The model itself must never be advised: mappings of its own.
    regions = mmap(NULL, REGIONS * sizeof *regions, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    template_file = memfd_create("template", MFD_CLOEXEC);
    for (size_t p = 0; p < MAX_PAGES; p++) {
        uint64_t page[512];
        fill_page(page, 1 + p % POOL);
        if (write(template_file, page, PAGE) != PAGE) FAIL("write: %s", strerror(errno));
    }
    int files = open_files();
    for (int i = 0; i < REGIONS; i++) map_region(&regions[i], NULL);
    start_threads();
    operate(operations);
    stop_threads();
    check_all("at the end");
    count_mappings(files);
    struct mayfly_merge_stats stats = {0};
    if (mayfly_merge_stats(&stats, sizeof stats)) FAIL("mayfly_merge_stats");
    if (seed % 2)
        for (int i = 0; i < REGIONS; i++) munmap(regions[i].base, regions[i].pages * PAGE);
    printf("operations=%llu counts=%lu calls=%llu pages=%llu merged=%llu inserted=%llu unchanged=%llu kept=%llu zero=%llu "
           "busy=%llu refused=%llu failed=%lu\n", (unsigned long long)done, bumps, (unsigned long long)stats.calls,
           (unsigned long long)stats.pages, (unsigned long long)stats.merged_pages, (unsigned long long)stats.inserted_pages,
           (unsigned long long)stats.unchanged_pages, (unsigned long long)stats.private_pages,
           (unsigned long long)stats.zero_pages, (unsigned long long)stats.busy_pages,
           (unsigned long long)stats.refused_pages, failed_calls);
    return 0;
}
