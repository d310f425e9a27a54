// Preloaded beside an allocator: writes the allocator's live bytes, ten times a second, to the file that LIFETIME_WATCH
// names. It only reads and interposes nothing, so that speed and calling contexts are the program's own.
//
// A line: CLOCK_MONOTONIC in ms, live bytes (rounded up to the allocator's sizes). The first line is the PID. An
// allocator that does not count them has no other lines, and one that does not yet has them later.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static int (*mayfly_stats)(char *, size_t);
static int (*tcmalloc_property)(const char *, size_t *);
static int (*jemalloc_control)(const char *, void *, size_t *, void *, size_t);
static struct mallinfo2 (*glibc_counts)();
static int file = -1;

// A function of the library that malloc is of: glibc's mallinfo2 does not count another allocator's objects.
template <typename Function> static void find(Function &function, const char *name) {
    Dl_info of_malloc, of_function;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    if (symbol && dladdr(dlsym(RTLD_DEFAULT, "malloc"), &of_malloc) && dladdr(symbol, &of_function) &&
        !strcmp(of_malloc.dli_fname, of_function.dli_fname))
        function = reinterpret_cast<Function>(symbol);
}

static bool counts() { return mayfly_stats || tcmalloc_property || jemalloc_control || glibc_counts; }

static bool live_bytes(size_t &bytes) {
    if (mayfly_stats) {
        static char text[16384];
        mayfly_stats(text, sizeof text);
        const char *found = strstr(text, "\"heap.live_bytes\":");
        bytes = found ? strtoull(found + strlen("\"heap.live_bytes\":"), nullptr, 10) : 0;
        return found;
    }
    // It answers no until the library's own constructor has run.
    if (tcmalloc_property) return tcmalloc_property("generic.current_allocated_bytes", &bytes);
    if (jemalloc_control) {
        // jemalloc's counts are those of the last time that its epoch was advanced.
        uint64_t epoch = 1;
        size_t size = sizeof bytes;
        jemalloc_control("epoch", nullptr, nullptr, &epoch, sizeof epoch);
        return !jemalloc_control("stats.allocated", &bytes, &size, nullptr, 0);
    }
    struct mallinfo2 info = glibc_counts();
    bytes = info.uordblks + info.hblkhd;
    return true;
}

static void *watch(void *) {
    for (;;) {
        timespec now, pause{0, 100000000};
        clock_gettime(CLOCK_MONOTONIC, &now);
        size_t bytes;
        if (live_bytes(bytes)) {
            char line[64];
            int length = snprintf(line, sizeof line, "%lld %zu\n", now.tv_sec * 1000ll + now.tv_nsec / 1000000, bytes);
            if (write(file, line, size_t(length)) != length) return nullptr;
        }
        nanosleep(&pause, nullptr);
    }
}

__attribute__((constructor)) static void begin() {
    const char *path = getenv("LIFETIME_WATCH");
    if (!path) return;
    // Programs that this one starts are not watched: only the first process to create the file is.
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return;
    find(mayfly_stats, "mayfly_heap_stats");
    find(tcmalloc_property, "MallocExtension_GetNumericProperty");
    find(jemalloc_control, "mallctl");
    if (!mayfly_stats && !tcmalloc_property) find(glibc_counts, "mallinfo2");
    dprintf(file, "%d\n", getpid());
    if (!counts()) return;
    // This thread blocks all signals: the program's own threads must receive them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, watch, nullptr) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
