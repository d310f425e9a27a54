// Preloaded beside an allocator: writes the allocator's live bytes, ten times a second, to the file that LIFETIME_WATCH
// names. It only reads and interposes nothing, so that speed and calling contexts are the program's own.
//
// A line: CLOCK_MONOTONIC in ms, live bytes (rounded up to the allocator's sizes). The first line is the PID.
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
static int file = -1;

static size_t live_bytes() {
    if (mayfly_stats) {
        static char text[16384];
        mayfly_stats(text, sizeof text);
        const char *found = strstr(text, "\"heap.live_bytes\":");
        return found ? strtoull(found + strlen("\"heap.live_bytes\":"), nullptr, 10) : 0;
    }
    size_t bytes = 0;
    if (tcmalloc_property && tcmalloc_property("generic.current_allocated_bytes", &bytes)) return bytes;
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void *watch(void *) {
    for (;;) {
        timespec now, pause{0, 100000000};
        clock_gettime(CLOCK_MONOTONIC, &now);
        char line[64];
        int length = snprintf(line, sizeof line, "%lld %zu\n", now.tv_sec * 1000ll + now.tv_nsec / 1000000, live_bytes());
        if (write(file, line, size_t(length)) != length) return nullptr;
        nanosleep(&pause, nullptr);
    }
}

__attribute__((constructor)) static void begin() {
    const char *path = getenv("LIFETIME_WATCH");
    if (!path) return;
    // Programs that this one starts are not watched: only the first process to create the file is.
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return;
    mayfly_stats = reinterpret_cast<decltype(mayfly_stats)>(dlsym(RTLD_DEFAULT, "mayfly_heap_stats"));
    tcmalloc_property =
        reinterpret_cast<decltype(tcmalloc_property)>(dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty"));
    dprintf(file, "%d\n", getpid());
    // This thread blocks all signals: the program's own threads must receive them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, watch, nullptr) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
