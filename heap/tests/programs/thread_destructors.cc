// Destructors that allocate while a thread ends: pthread keys (again and again), C++ thread_local objects,
// and those that run after the heap's own. 3,000 threads with bounded memory.
#include "check.h"
#include <memory>
#include <pthread.h>
#include <string>
#include <vector>

static pthread_key_t keys[4];
static int destructions;

static void destructor(void *value) {
    long round = *(long *)value;
    free(value);
    for (size_t size = 8; size < 40000; size *= 3) {
        char *p = (char *)malloc(size);
        fill(p, size, size);
        p = (char *)realloc(p, size * 2);
        expect(p, size, size, "in a destructor");
        free(p);
    }
    __atomic_fetch_add(&destructions, 1, __ATOMIC_RELAXED);
    if (round < 3) {  // asks to be called again: after the heap's own destructor, whichever came first
        long *next = (long *)malloc(100 * (size_t)round + 8);
        *next = round + 1;
        pthread_setspecific(keys[round % 4], next);
    }
}

struct Local {
    std::vector<std::unique_ptr<std::string>> strings;
    ~Local() {
        for (auto &each : strings) CHECK(*each == std::string(60, 'x'), "a thread_local object changed");
        strings.clear();
        for (int i = 0; i < 50; i++) strings.push_back(std::make_unique<std::string>(i * 10, 'y'));
    }
};
static thread_local Local local;

static void *body(void *argument) {
    for (int i = 0; i < 20; i++) local.strings.push_back(std::make_unique<std::string>(60, 'x'));
    for (pthread_key_t key : keys) {
        long *value = (long *)malloc(sizeof(long));
        *value = 1;
        pthread_setspecific(key, value);
    }
    if (argument) pthread_exit(nullptr);
    return nullptr;
}

int main() {
    pthread_key_create(&keys[0], destructor);  // before this program allocated anything
    free(malloc(10));
    for (int i = 1; i < 4; i++) pthread_key_create(&keys[i], destructor);
    long warm = 0;
    for (long round = 0; round < 1000; round++) {
        pthread_t threads[3];
        for (pthread_t &thread : threads) CHECK(pthread_create(&thread, nullptr, body, (void *)(round % 2)) == 0, "pthread_create");
        for (pthread_t thread : threads) pthread_join(thread, nullptr);
        if (round == 200) warm = resident_bytes();
    }
    CHECK(destructions >= 3000 * 4, "only %d destructor calls", destructions);
    CHECK(resident_bytes() < warm + (long)MIB(24), "resident: %ld bytes after 200 rounds, %ld at the end", warm, resident_bytes());
    return 0;
}
