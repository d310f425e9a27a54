// arguments: --seconds {fuzz_seconds} --seed {seed}
// Fuzzing of the interface: bytes are decoded into a sequence of calls, right and wrong arguments alike,
// and run against the shadow of shadow.h. `fuzz_interface FILE...` repeats inputs; `fuzz_interface
// --seconds N --seed S` makes and mutates its own and writes the one that failed to
// `fuzz-failure-SEED-N.bin`. With clang, -fsanitize=fuzzer and -DWITH_LIBFUZZER use libFuzzer instead.
#include "shadow.h"
#include <fcntl.h>
#include <new>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static Shadow shadow;

struct Input {
    const uint8_t *at, *end;
    uint64_t number(int bytes) {
        uint64_t n = 0;
        for (int i = 0; i < bytes && at < end; i++) n = n << 8 | *at++;
        return n;
    }
    // A size near a power of two (two bytes), small (one), exact (four) or absurd.
    size_t size() {
        uint64_t kind = number(1);
        if (kind < 100) return number(1);
        if (kind < 220) return ((size_t)1 << kind % 16) + number(1) - 128;
        if (kind < 250) return number(3) % (kind < 225 ? MIB(4) : KIB(60));
        return (size_t)-1 - number(2) * (kind == 255 ? (size_t)1 << 47 : 1);
    }
    size_t alignment() {
        uint64_t kind = number(1);
        return kind < 230 ? (size_t)1 << kind % (kind < 8 ? 26 : 15) : (size_t)kind * number(1);
    }
};

static size_t owed(size_t size) { return size >= 16 ? 16 : size >= 8 ? 8 : 1; }
static bool sane(size_t size) { return size <= MIB(32); }
static bool power_of_two(size_t n) { return n && (n & (n - 1)) == 0; }

static void had(const char *call, void *p, size_t size, size_t alignment) {
    if (p) {
        CHECK(sane(size), "%s gave %p for a size of %zu (alignment %zu)", call, p, size, alignment);
        shadow.add(p, size, alignment);
    } else {
        CHECK(!sane(size), "%s: no memory for %zu bytes (errno %d, %zu live)", call, size, errno, shadow.live_bytes);
        CHECK(errno == ENOMEM, "%s: errno %d for %zu bytes, alignment %zu", call, errno, size, alignment);
    }
    errno = 0;
}

static void *pick(Input &input) {
    if (shadow.objects.empty()) return nullptr;
    auto it = shadow.objects.begin();
    for (uint64_t steps = input.number(1) % shadow.objects.size(); steps; steps--) ++it;
    return (void *)it->first;
}

static void release(void *p, const Held &) { free(p); }

static void one_call(Input &input) {
    errno = 0;
    switch (input.number(1) % 24) {
        case 0: case 1: case 2: case 3: case 4: { size_t size = input.size(); had("malloc", malloc(size), size, owed(size)); break; }
        case 5: {
            size_t count = input.number(1), size = input.size(), product;
            void *p = calloc(count, size);
            if (__builtin_mul_overflow(count, size, &product)) product = SIZE_MAX;
            if (p) for (size_t i = 0; i < product; i += 1 + i / 256) CHECK(((char *)p)[i] == 0, "calloc(%zu, %zu): byte %zu", count, size, i);
            had("calloc", p, sane(product) || !p || product > MIB(2048) ? product : 0, owed(product));
            break;
        }
        case 6: case 7: {
            void *old = pick(input), *moved;
            size_t size = input.size();
            if (!old) { had("realloc(NULL)", realloc(nullptr, size), size, owed(size)); break; }
            Held held = shadow.objects[(uintptr_t)old];
            moved = realloc(old, size);
            if (size == 0 && !moved) { shadow.remove(old, "realloc to 0"); break; }
            if (!moved) {
                Shadow::expect_marked(old, held, held.usable, "after a refused realloc");
                had("realloc", nullptr, size, 1);
                break;
            }
            shadow.remove(old, "realloc");
            Shadow::expect_marked(moved, held, size < held.size ? size : held.size, "after realloc");
            had("realloc", moved, size, owed(size));
            break;
        }
        case 8: case 9: {
            void *p = nullptr;
            size_t alignment = input.alignment(), size = input.size();
            int error = posix_memalign(&p, alignment, size);
            if (!power_of_two(alignment) || alignment % sizeof(void *)) CHECK(error == EINVAL && !p, "posix_memalign(%zu) gave %d", alignment, error);
            else { errno = error; had("posix_memalign", p, size, alignment); }
            break;
        }
        case 10: {
            size_t alignment = input.alignment(), size = input.size();
            void *p = memalign(alignment, size);
            if (power_of_two(alignment)) had("memalign", p, size, alignment);
            else if (p) had("memalign", p, size, 1);
            break;
        }
        case 11: { size_t size = input.size() & ~(size_t)4095; void *p = aligned_alloc(4096, size); had("aligned_alloc", p, size, 4096); break; }
        case 12: { size_t size = input.size(); void *p = input.number(1) % 2 ? valloc(size) : pvalloc(size); had("valloc or pvalloc", p, size, 4096); break; }
        case 13: { size_t size = input.size(); void *p = ::operator new(size, std::nothrow); if (!p) errno = ENOMEM; had("new", p, size, owed(size)); break; }
        case 14: {
            size_t alignment = (size_t)1 << input.number(1) % 13, size = input.size();
            if (size > SIZE_MAX - alignment) size = PTRDIFF_MAX;  // libstdc++'s own rounds such sizes up to 0
            void *p = ::operator new(size, std::align_val_t(alignment), std::nothrow);
            if (!p) errno = ENOMEM;
            had("aligned new", p, size, alignment);
            break;
        }
        case 15: free(nullptr); malloc_trim(input.size()); break;
        case 16: { struct mallinfo2 info = mallinfo2(); CHECK(info.uordblks + info.hblkhd >= shadow.live_bytes / 2, "mallinfo2"); break; }
        case 17: { void *p = pick(input); CHECK(malloc_usable_size(p) == (p ? shadow.objects[(uintptr_t)p].usable : 0), "usable size of %p", p); break; }
        case 18: {
            void *old = pick(input);
            size_t count = input.size(), size = input.size(), product;
            if (!__builtin_mul_overflow(count, size, &product)) break;
            CHECK(!reallocarray(old, count, size) && errno == ENOMEM, "reallocarray(%zu, %zu)", count, size);
            break;
        }
        default: if (void *p = pick(input)) shadow.drop(p, release);
    }
    while (shadow.live_bytes > MIB(256)) shadow.drop((void *)shadow.objects.begin()->first, release);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Input input{data, data + size};
    while (input.at < input.end) one_call(input);
    shadow.drop_all(release);
    return 0;
}

#ifndef WITH_LIBFUZZER
enum { LONGEST = 2048, KEPT = 64 };
static uint8_t inputs[KEPT][LONGEST];
static size_t lengths[KEPT];
static uint8_t current[LONGEST];
static char failure_name[64];

// A child does the run, because CHECK ends it by _exit and the heap by SIGABRT.
static void write_failure(const uint8_t *data, size_t size) {
    int file = open(failure_name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (file >= 0 && write(file, data, size) == (ssize_t)size) fprintf(stderr, "the input is in %s\n", failure_name);
    if (file >= 0) close(file);
}

int main(int argc, char **argv) {
    double seconds = 5;
    uint64_t seed = 1;
    bool files = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc) seconds = strtod(argv[++i], nullptr);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) seed = strtoull(argv[++i], nullptr, 10);
        else {
            files = true;
            int file = open(argv[i], O_RDONLY);
            CHECK(file >= 0, "cannot open %s: %s", argv[i], strerror(errno));
            ssize_t length = read(file, current, LONGEST);
            close(file);
            LLVMFuzzerTestOneInput(current, length < 0 ? 0 : (size_t)length);
        }
    }
    if (files) return 0;
    printf("seed %llu, %g s\n", (unsigned long long)seed, seconds);
    fflush(stdout);
    // The inputs lie in memory that parent and child share; the one being run is there when the child dies.
    struct Shared { uint8_t data[LONGEST]; size_t length; long runs; } *shared =
        (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(failure_name, sizeof failure_name, "fuzz-failure-%llu.bin", (unsigned long long)seed);
    pid_t pid = fork();
    if (pid == 0) {
        timespec start, now;
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            size_t kept = next_random(&seed) % KEPT;
            if (lengths[kept] == 0 || next_random(&seed) % 8 == 0) {
                lengths[kept] = 1 + next_random(&seed) % LONGEST;
                for (size_t i = 0; i < lengths[kept]; i++) inputs[kept][i] = (uint8_t)next_random(&seed);
            } else {
                for (uint64_t changes = 1 + next_random(&seed) % 30; changes; changes--)
                    inputs[kept][next_random(&seed) % lengths[kept]] = (uint8_t)next_random(&seed);
            }
            memcpy(shared->data, inputs[kept], lengths[kept]);
            shared->length = lengths[kept];
            LLVMFuzzerTestOneInput(shared->data, shared->length);
            shared->runs++;
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
        exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("%ld inputs\n", shared->runs);
    if (status == 0) return 0;
    write_failure(shared->data, shared->length);
    CHECK(false, "input %ld ended with status %#x", shared->runs, status);
}
#endif
