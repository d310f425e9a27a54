// arguments: --seconds {seconds} --seed {seed}
// Random calls from many threads with every object's contents checked: objects freed by other threads,
// threads that end and start, forks from a busy program, signals. `stress --seconds N --seed S [--threads
// T]`: the same seed gives each thread the same calls.
#include "check.h"
#include <atomic>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <vector>

struct Object { uint64_t id; size_t size; uint64_t how; };  // at the start of each; the pattern follows
enum How { MALLOC, CALLOC, ALIGNED, NEW, NEW_ALIGNED };
constexpr int SLOTS = 4096, OWN = 2000, GENERATIONS_EVERY = 60000;
static std::atomic<Object *> slots[SLOTS];
static std::atomic<bool> stopping;
static std::atomic<long> calls, live_bytes, handled, generations, forks;
static uint64_t seed = 1;

static Object *make(uint64_t *random) {
    uint64_t r = next_random(random);
    unsigned scale = r % 1000 < 900 ? 6 : r % 1000 < 990 ? 12 : r % 1000 < 999 ? 17 : 22;
    size_t size = sizeof(Object) + next_random(random) % ((size_t)1 << scale);
    size_t alignment = (size_t)16 << (r >> 20) % 9;
    uint64_t kind = (r >> 10) % 16;
    How how = kind < 11 ? MALLOC : How(kind - 11);
    void *p = how == MALLOC ? malloc(size) : how == CALLOC ? calloc(1, size) : how == ALIGNED ? memalign(alignment, size)
            : how == NEW ? ::operator new(size) : ::operator new(size, std::align_val_t(alignment));
    CHECK(p, "no memory for %zu bytes (%ld live)", size, live_bytes.load());
    if (how == ALIGNED || how == NEW_ALIGNED) CHECK((uintptr_t)p % alignment == 0, "%p is not aligned to %zu", p, alignment);
    if (how == CALLOC)
        for (size_t i = 0; i < size; i++) CHECK(((char *)p)[i] == 0, "calloc(%zu): byte %zu is not zero", size, i);
    Object *object = (Object *)p;
    *object = {r, size, (uint64_t)how << 32 | alignment};
    fill(object + 1, size - sizeof *object, r);
    live_bytes += (long)size;
    return object;
}

static void verify(const Object *object, const char *when) {
    CHECK(object->size >= sizeof *object && object->size < MIB(8), "%s: the header of %p is not its own (size %zu)", when,
          (const void *)object, object->size);
    expect(object + 1, object->size - sizeof *object, object->id, when);
}

static void drop(Object *object) {
    if (!object) return;
    verify(object, "at free");
    live_bytes -= (long)object->size;
    size_t size = object->size, alignment = (uint32_t)object->how;
    How how = How(object->how >> 32);
    memset((void *)object, 0xdd, size < 64 ? size : 64);
    if (how == NEW) ::operator delete((void *)object, size);
    else if (how == NEW_ALIGNED) ::operator delete((void *)object, size, std::align_val_t(alignment));
    else free(object);
}

static Object *resize(Object *object, uint64_t *random) {
    if (!object || How(object->how >> 32) >= NEW) return object;
    verify(object, "before realloc");
    size_t old = object->size, size = sizeof(Object) + next_random(random) % (old < MIB(2) ? old * 2 : MIB(4));
    object = (Object *)realloc((void *)object, size);
    CHECK(object && object->size == old, "realloc from %zu to %zu", old, size);
    expect(object + 1, (old < size ? old : size) - sizeof *object, object->id, "after realloc");
    object->size = size;
    object->how = (uint64_t)MALLOC << 32;
    fill(object + 1, size - sizeof *object, object->id);
    live_bytes += (long)size - (long)old;
    return object;
}

static bool crowded() { return live_bytes > (long)MIB(600); }

// One thread's life: objects of its own and objects left in slots where any thread frees them.
static void churn(uint64_t *random, long rounds, std::vector<Object *> &own) {
    for (long i = 0; i < rounds && !stopping; i++) {
        uint64_t r = next_random(random);
        Object *&mine = own[(r >> 8) % own.size()];
        std::atomic<Object *> &slot = slots[(r >> 24) % SLOTS];
        if (crowded()) {
            drop(slot.exchange(nullptr));
            drop(mine);
            mine = nullptr;
            continue;
        }
        switch (r % 8) {
            case 0: case 1: drop(slot.exchange(make(random))); break;
            case 2: drop(slot.exchange(mine)); mine = nullptr; break;
            case 3: mine = resize(mine, random); break;
            case 4: if (mine) verify(mine, "while live"); break;
            default: drop(mine); mine = make(random); break;
        }
        if (i % 64 == 0) calls += 64;
    }
}

struct Life { int number; uint64_t generation; };
static void *thread_body(void *argument) {
    Life life = *(Life *)argument;
    uint64_t random = seed * 1000003 + (uint64_t)life.number * 7919 + life.generation * 104729;
    std::vector<Object *> own(OWN / 4 + next_random(&random) % OWN);
    churn(&random, GENERATIONS_EVERY, own);
    for (size_t i = 0; i < own.size(); i++) {  // a part stays behind for others to free
        if (i % 5 == 0) drop(slots[next_random(&random) % SLOTS].exchange(own[i]));
        else drop(own[i]);
    }
    return nullptr;
}
static void *keep_thread_alive(void *number) {  // runs one life after another, each in a thread of its own
    for (Life life{(int)(intptr_t)number, 0}; !stopping; life.generation++, generations++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, nullptr, thread_body, &life) == 0, "pthread_create");
        pthread_join(thread, nullptr);
    }
    return nullptr;
}

static void child(uint64_t random) {
    alarm(60);
    for (int i = 0; i < 200; i++) drop(slots[next_random(&random) % SLOTS].exchange(nullptr));
    std::vector<Object *> own(100);
    churn(&random, 2000, own);
    pthread_t thread;
    Life life{1000, random};
    CHECK(pthread_create(&thread, nullptr, [](void *a) -> void * {
              std::vector<Object *> objects(50);
              uint64_t r = ((Life *)a)->generation;
              churn(&r, 1000, objects);
              for (Object *object : objects) drop(object);
              return nullptr;
          }, &life) == 0, "pthread_create in a child");
    pthread_join(thread, nullptr);
    for (Object *object : own) drop(object);
    if (random % 4 == 0) exit(0);
    _exit(0);
}

static void on_signal(int) {
    char stack[600];
    memset(stack, 0x77, sizeof stack);
    opaque(stack);
    handled++;
}

int main(int argc, char **argv) {
    double seconds = 10;
    long threads = 6;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seconds")) seconds = strtod(argv[i + 1], nullptr);
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], nullptr, 10);
        else if (!strcmp(argv[i], "--threads")) threads = strtol(argv[i + 1], nullptr, 10);
        else CHECK(false, "usage: stress [--seconds N] [--seed S] [--threads T], not %s", argv[i]);
    }
    printf("seed %llu, %ld threads, %g s\n", (unsigned long long)seed, threads, seconds);
    fflush(stdout);
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    std::vector<pthread_t> runners((size_t)threads);
    for (long i = 0; i < threads; i++) pthread_create(&runners[(size_t)i], nullptr, keep_thread_alive, (void *)i);

    timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t random = seed;
    long peak = 0;
    int words = memfd_create("words", 0);
    CHECK(words >= 0, "memfd_create: %s", strerror(errno));
    do {
        for (int i = 0; i < 5; i++) {
            kill(getpid(), SIGUSR1);
            usleep(4000);
        }
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            dup2(words, 2);
            child(random);
        }
        int status;
        next_random(&random);
        while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
        CHECK(status == 0, "child %ld ended with %#x%s; it said: %s", forks.load(), status, status == 14 ? " (it hung)" : "",
              last_words(words));
        forks++;
        if (forks % 10 == 0) malloc_trim(0);
        if (resident_bytes() > peak) peak = resident_bytes();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 < seconds);

    stopping = true;
    for (pthread_t runner : runners) pthread_join(runner, nullptr);
    for (auto &slot : slots) drop(slot.exchange(nullptr));
    CHECK(live_bytes == 0, "%ld bytes are unaccounted for", live_bytes.load());
    malloc_trim(0);
    printf("%ld calls, %ld thread lives, %ld forks, %ld signals, peak resident %ld MiB, at the end %ld MiB\n", calls.load(),
           generations.load(), forks.load(), handled.load(), peak >> 20, resident_bytes() >> 20);
    CHECK(resident_bytes() < (long)MIB(160), "%ld bytes resident after all was freed", resident_bytes());
    return 0;
}
