// Shared by all workloads: a clock, the process's memory as the kernel counts it, and a JSON line at the end.
// Nothing here allocates, so that the heap serves only the workload itself.
#pragma once

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

namespace bench {

inline uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// Processor time of this thread, for workloads of one thread: it leaves out the rest of the machine's load.
inline uint64_t thread_cpu_ns() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

inline void sleep_ms(long ms) {
    timespec t{ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&t, nullptr);
}

// A wrong answer ends the run at once: a fast allocator that loses data has no time worth reporting.
[[noreturn]] inline void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(1);
}

// xorshift64*: the same numbers in every run and for every allocator.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15u + 1) {}
    uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545F4914F6CDD1Du;
    }
    uint64_t below(uint64_t n) { return (next() >> 32) * n >> 32; }
};

// The number that follows `name` in a /proc file of "Name:  123 kB" lines; 0 if there is none.
inline long proc_kib(const char *path, const char *name) {
    static char text[1 << 14];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t used = 0, got;
    while ((got = read(fd, text + used, sizeof text - 1 - used)) > 0) used += got;
    close(fd);
    text[used] = 0;
    const char *at = strstr(text, name);
    return at ? strtol(at + strlen(name), nullptr, 10) : 0;
}

struct Memory {
    long rss_kib, peak_rss_kib;
};

inline Memory memory() {
    return {proc_kib("/proc/self/smaps_rollup", "Rss:"), proc_kib("/proc/self/status", "VmHWM:")};
}

// Builds the JSON object in a fixed buffer.
class Report {
    char text[1 << 14];
    size_t used = 0;

  public:
    Report() {
        add("{\"allocator_file\":\"%s\"", file_of_malloc());
    }
    void number(const char *key, double value) { add(",\"%s\":%.9g", key, value); }
    // Has the bench measure the memory at this moment, under a prefix (bench/heap/moments.py). Run by hand, the
    // program reports what is resident.
    void memory_now(const char *prefix = "") {
        int asks, answered;
        char line[96];
        const char *descriptors = getenv("BENCH_MOMENTS");
        if (!descriptors || sscanf(descriptors, "%d,%d", &asks, &answered) != 2) {
            snprintf(line, sizeof line, "%srss_kib", prefix);
            return number(line, double(memory().rss_kib));
        }
        int bytes = snprintf(line, sizeof line, "%s\n", prefix);
        if (write(asks, line, size_t(bytes)) != bytes || read(answered, line, 1) != 1)
            fail("the bench does not answer: %s", strerror(errno));
    }
    void print() {
        Memory m = memory();
        // The kernel updates its peak in batches; it is never below what is resident now.
        number("peak_rss_kib", double(m.peak_rss_kib > m.rss_kib ? m.peak_rss_kib : m.rss_kib));
        add("%s", "}\n");
        fwrite(text, 1, used, stdout);
        fflush(stdout);
    }

  private:
    static const char *file_of_malloc() {
        Dl_info info;
        return dladdr(reinterpret_cast<void *>(&malloc), &info) && info.dli_fname ? info.dli_fname : "";
    }
    __attribute__((format(printf, 2, 3))) void add(const char *format, ...) {
        va_list args;
        va_start(args, format);
        used += vsnprintf(text + used, sizeof text - used, format, args);
        va_end(args);
    }
};

inline uint64_t argument(int argc, char **argv, int index, uint64_t otherwise) {
    return argc > index ? strtoull(argv[index], nullptr, 0) : otherwise;
}

} // namespace bench
