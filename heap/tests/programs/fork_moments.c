// timeout: 240
// fork at every moment of another thread's allocations: the child's threads take over the heaps of threads
// that it does not have, which must be consistent. Workers allocate bursts of one size, so their bins cache
// words of cells all the time. The child allocates the same way and must not get a worker's cells.
// `fork_moments FORKS`; a heap that did not guard the caching of a word failed after a few hundred.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { WORKERS = 4, KEPT = 3000, FORKS = 500, MADE = 1500, SIZE = 48 };
typedef struct { uint64_t id, inverse; char rest[SIZE - 16]; } Object;
static _Atomic(Object *) kept[WORKERS][KEPT];
static atomic_int stopping;
static pthread_barrier_t all_moved_in;

// One call site and stack height for all: the same lifetime class.
__attribute__((noinline)) static Object *make(uint64_t id) {
    Object *object = malloc(sizeof *object);
    CHECK(object, "malloc");
    object->id = id;
    object->inverse = ~id;
    return object;
}

static void *worker(void *argument) {
    uintptr_t number = (uintptr_t)argument;
    uint64_t random = number, next = number << 40;
    while (!atomic_load(&stopping)) {
        // Objects freed together leave words of 64 cells with room behind them.
        size_t first = next_random(&random) % (KEPT - 400);
        for (size_t i = first; i < first + 400; i++) free(atomic_exchange(&kept[number][i], NULL));
        for (size_t i = first; i < first + 400; i++) atomic_store(&kept[number][i], make(next++));
    }
    return NULL;
}

static void *child_worker(void *argument) {
    Object **made = argument;
    for (int i = 0; i < MADE; i++) {
        made[i] = make((uint64_t)-1 - (uint64_t)i);
        // A thread that ended too soon would leave its heap to the next one, and the others would stay
        // vacant.
        if (i == 0) pthread_barrier_wait(&all_moved_in);
    }
    return NULL;
}

static void child(void) {
    alarm(60);
    static Object *made[WORKERS][MADE];
    pthread_t threads[WORKERS];
    pthread_barrier_init(&all_moved_in, NULL, WORKERS);
    for (int i = 0; i < WORKERS; i++) CHECK(pthread_create(&threads[i], NULL, child_worker, made[i]) == 0, "thread in child");
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    for (int t = 0; t < WORKERS; t++)
        for (int i = 0; i < KEPT; i++) {
            Object *object = atomic_load(&kept[t][i]);
            CHECK(!object || (object->id >> 40 == (uint64_t)t && object->inverse == ~object->id),
                  "object %d of worker %d at %p was given away: id %#llx", i, t, (void *)object, (unsigned long long)object->id);
        }
    for (int t = 0; t < WORKERS; t++)
        for (int i = 0; i < MADE; i++) {
            CHECK(made[t][i]->id == (uint64_t)-1 - (uint64_t)i, "%p was given away twice", (void *)made[t][i]);
            free(made[t][i]);
        }
    _exit(0);
}

int main(int count, char **arguments) {
    int forks = count > 1 ? atoi(arguments[1]) : FORKS, words = memfd_create("words", 0);
    pthread_t workers[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++) pthread_create(&workers[i], NULL, worker, (void *)i);
    for (int i = 0; i < forks; i++) {
        usleep(500);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            dup2(words, 2);
            child();
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child %d ended with %#x%s; it said: %s", i, status,
              status == 14 ? " (it hung)" : "", last_words(words));
    }
    atomic_store(&stopping, 1);
    for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
    return 0;
}
