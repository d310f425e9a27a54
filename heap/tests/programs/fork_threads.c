// fork while other threads allocate and free: hundreds of children that allocate, free the other threads'
// objects, start threads of their own and leave by exit or _exit; forks from several threads, with
// handlers that allocate.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { SLOTS = 512, WORKERS = 4, FORKS = 300 };
typedef struct { uint64_t id; size_t size; } Object;
static _Atomic(Object *) slots[SLOTS];
static atomic_int stopping;
static pthread_key_t key;

static Object *make(uint64_t *random) {
    size_t size = sizeof(Object) + next_random(random) % ((size_t)1 << (3 + next_random(random) % 14));
    Object *object = malloc(size);
    CHECK(object, "malloc(%zu)", size);
    object->id = next_random(random);
    object->size = size;
    fill(object + 1, size - sizeof *object, object->id);
    return object;
}

static void drop(Object *object) {
    if (!object) return;
    expect(object + 1, object->size - sizeof *object, object->id, "at free");
    free(object);
}

static void churn(uint64_t *random, int rounds) {
    for (int i = 0; i < rounds; i++) drop(atomic_exchange(&slots[next_random(random) % SLOTS], make(random)));
}

static void *worker(void *seed) {
    uint64_t random = (uintptr_t)seed;
    while (!atomic_load(&stopping)) churn(&random, 100);
    return NULL;
}

static void *child_worker(void *seed) {
    uint64_t random = (uintptr_t)seed;
    pthread_setspecific(key, malloc(99));
    churn(&random, 300);
    return make(&random);
}

static void handler_allocates(void) {
    void *p = malloc(300);
    memset(p, 1, 300);
    free(p);
}

static void child(int number) {
    alarm(30);
    uint64_t random = (uint64_t)number * 77;
    for (int i = 0; i < SLOTS; i += 3) drop(atomic_exchange(&slots[i], NULL));
    churn(&random, 200);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, child_worker, (void *)(i + 5)) == 0, "thread in child");
    for (int i = 0; i < 2; i++) {
        void *made;
        pthread_join(threads[i], &made);
        drop(made);
    }
    if (number % 40 == 0) {  // a child of the child
        pid_t pid = fork();
        if (pid == 0) {
            churn(&random, 50);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "grandchild ended with %#x", status);
    }
    if (number % 2) exit(0);
    _exit(0);
}

static void *forker(void *argument) {
    int first = (int)(intptr_t)argument;
    for (int i = 0; i < FORKS / 3; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) child(first + i);
        uint64_t random = (uint64_t)i;
        churn(&random, 20);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child %d ended with %#x%s", first + i, status,
              status == 14 ? " (it hung)" : "");
    }
    return NULL;
}

int main(void) {
    pthread_key_create(&key, free);
    pthread_atfork(handler_allocates, handler_allocates, handler_allocates);
    pthread_t workers[WORKERS], forkers[2];
    for (uintptr_t i = 0; i < WORKERS; i++) pthread_create(&workers[i], NULL, worker, (void *)(i + 1));
    for (intptr_t i = 0; i < 2; i++) pthread_create(&forkers[i], NULL, forker, (void *)(i * 1000));
    forker((void *)5000);
    for (int i = 0; i < 2; i++) pthread_join(forkers[i], NULL);
    atomic_store(&stopping, 1);
    for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
    for (int i = 0; i < SLOTS; i++) drop(atomic_exchange(&slots[i], NULL));
    return 0;
}
