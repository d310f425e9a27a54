// flags: -pthread
// variants: test_wrong_frees.py starts this program once for each case
// sized: double double_after_other pressure remote_twice own_then_remote remote_then_own interior misaligned halfway past_end realloc_freed realloc_interior
// others: stack global text mapped mapped_inside unmapped not_canonical tiny_address realloc_stack
// late: remote_then_own_reused-small remote_then_own_reused-few remote_then_own_reused-medium remote_then_own_reused-block many_remote_then_own_reused-few many_remote_then_own_reused-medium many_remote_then_own_reused-block
// headers: header_zero-small header_ones-small header_letters-small header_zero-medium header_letters-medium
// Invalid frees. `errors CASE` prints `pointer 0x...` and `text START END`, then does what CASE names. The
// heap must end the program with SIGABRT and one line on stderr that names the pointer and the caller;
// reaching the end of main is the failure.
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>

extern char __executable_start, etext;
static char global[256];

__attribute__((noinline)) static void wrong_free(void *p) {
    printf("pointer %p\ntext %p %p\n", p, (void *)&__executable_start, (void *)&etext);
    fflush(stdout);
    free(opaque(p));
    opaque(p);
}

__attribute__((noinline)) static void *from_one_place(size_t size) { return opaque(malloc(size)); }

// Threads start before the first free: a starting thread's allocations could reuse the place of the freed
// object.
static pthread_barrier_t freed;
static void *free_in_thread(void *p) {
    free(p);
    return NULL;
}
static void *wrong_free_in_thread(void *p) {
    pthread_barrier_wait(&freed);
    wrong_free(p);
    return NULL;
}
static void in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, body, argument);
    pthread_join(thread, NULL);
}

enum { REMOTE = 60 };
static void *free_remote(void *objects) {
    for (int i = 0; i < REMOTE; i++) free(((void **)objects)[i]);
    return NULL;
}

// The owner may detect a double free through its list of remote frees only when it takes that list. Allocates
// enough that it does, and checks that no place is handed out twice.
static void aftermath(size_t size) {
    enum { MANY = 20000 };
    static void *objects[MANY];
    for (int i = 0; i < MANY; i++) objects[i] = malloc(size);
    for (int i = 0; i < MANY; i++) fill(objects[i], size, (uint64_t)i);
    for (int i = 0; i < MANY; i++)
        if (first_wrong(objects[i], size, (uint64_t)i) >= 0) {
            printf("silent corruption: object %d changed\n", i);
            exit(3);
        }
    malloc_trim(0);
}

static size_t size_named(const char *name) {
    if (strstr(name, "small")) return 48;
    if (strstr(name, "few")) return 1200;
    if (strstr(name, "medium")) return 3000;
    if (strstr(name, "block")) return 16000;
    if (strstr(name, "large")) return 100000;
    return MIB(9);  // huge
}

int main(int argc, char **argv) {
    CHECK(argc > 1, "usage: errors CASE");
    static char buffer[4096];  // stdio's own would be an object of the heap, perhaps where a freed one was
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    pthread_t second;
    pthread_barrier_init(&freed, NULL, 2);
    const char *name = argv[1];
    size_t size = size_named(name);
    char *p = malloc(size), *neighbour = malloc(size);
    memset(p, 1, size);
    if (strncmp(name, "double-", 7) == 0) {
        free(p);
        wrong_free(p);
    } else if (strncmp(name, "double_after_other-", 19) == 0) {
        free(p);
        free(neighbour);
        wrong_free(p);
    } else if (strncmp(name, "pressure-", 9) == 0) {  // far from anything that remembers recent frees
        enum { MANY = 5000 };
        static char *objects[MANY];
        int many = size > 1000000 ? 20 : MANY;
        for (int i = 0; i < many; i++) objects[i] = malloc(size);
        for (int i = 0; i < many; i++) free(objects[i]);
        wrong_free(objects[many / 2 + 1]);
    } else if (strncmp(name, "remote_twice-", 13) == 0) {
        pthread_create(&second, NULL, wrong_free_in_thread, p);
        in_thread(free_in_thread, p);
        pthread_barrier_wait(&freed);
        pthread_join(second, NULL);
    } else if (strncmp(name, "own_then_remote-", 16) == 0) {
        pthread_create(&second, NULL, wrong_free_in_thread, p);
        free(p);
        pthread_barrier_wait(&freed);
        pthread_join(second, NULL);
    } else if (strncmp(name, "remote_then_own_reused-", 23) == 0) {
        // The first free waits for its owner, so the second is noticed late, but before the place is reused.
        // All calls are one, which takes the fast path.
        for (int i = 0; i < 10000; i++) free(from_one_place(size));
        p = from_one_place(size);
        in_thread(free_in_thread, p);
        wrong_free(p);
        for (int i = 0; i < 2000; i++) {
            char *next = from_one_place(size);
            if (next == p) printf("reused\n"), fflush(stdout), exit(3);
            if (i % 2) free(next);
        }
    } else if (strncmp(name, "many_remote_then_own_reused-", 28) == 0) {
        // The owner takes one of the spans in which the other thread freed, and the others wait. One of their
        // places is freed again, and so is the first to be reused.
        void *objects[REMOTE];
        for (int i = 0; i < 10000; i++) free(from_one_place(size));
        for (int i = 0; i < REMOTE; i++) objects[i] = from_one_place(size);
        in_thread(free_remote, objects);
        char *next = from_one_place(size);
        for (int i = 0; i < REMOTE; i++)
            if (((uintptr_t)objects[i] ^ (uintptr_t)next) >= 16384) p = objects[i];
        wrong_free(p);
        for (int i = 0; i < 2000; i++)
            if (from_one_place(size) == p) printf("reused\n"), fflush(stdout), exit(3);
    } else if (strncmp(name, "remote_then_own-", 16) == 0) {
        in_thread(free_in_thread, p);
        wrong_free(p);
    } else if (strcmp(name, "stack") == 0) {
        char local[256];
        wrong_free(opaque(local + 64));
    } else if (strcmp(name, "global") == 0) {
        wrong_free(opaque(global + 64));
    } else if (strcmp(name, "text") == 0) {
        wrong_free(opaque((void *)size_named));
    } else if (strcmp(name, "mapped") == 0) {
        wrong_free(mmap(NULL, MIB(4), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    } else if (strcmp(name, "mapped_inside") == 0) {
        wrong_free((char *)mmap(NULL, MIB(4), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096 + 16);
    } else if (strcmp(name, "unmapped") == 0) {
        wrong_free((void *)0x12345678000);
    } else if (strcmp(name, "not_canonical") == 0) {
        wrong_free((void *)0xdead4ead00004ead);
    } else if (strcmp(name, "tiny_address") == 0) {
        wrong_free((void *)16);
    } else if (strncmp(name, "interior-", 9) == 0) {
        wrong_free(p + 16);
    } else if (strncmp(name, "misaligned-", 11) == 0) {
        wrong_free(p + 1);
    } else if (strncmp(name, "halfway-", 8) == 0) {
        wrong_free(p + size / 2 / 16 * 16);
    } else if (strncmp(name, "past_end-", 9) == 0) {
        free(neighbour);  // which may begin there
        wrong_free(p + malloc_usable_size(p));
    } else if (strncmp(name, "realloc_freed-", 14) == 0 || strncmp(name, "realloc_interior-", 17) == 0) {
        int freed = name[8] == 'f';
        if (freed) free(p);
        char *wrong = freed ? p : p + 32;
        printf("pointer %p\ntext %p %p\n", wrong, (void *)&__executable_start, (void *)&etext);
        fflush(stdout);
        opaque(realloc(opaque(wrong), size * 3));
    } else if (strcmp(name, "realloc_stack") == 0) {
        char local[256];
        printf("pointer %p\ntext %p %p\n", opaque(local), (void *)&__executable_start, (void *)&etext);
        fflush(stdout);
        opaque(realloc(opaque(local), 1000));
    } else if (strncmp(name, "header_", 7) == 0) {
        int pattern = strstr(name, "zero") ? 0 : strstr(name, "ones") ? 0xff : 'A';
        memset(p - 8, pattern, 8);
        wrong_free(p);
    } else {
        CHECK(0, "no case %s", name);
    }
    aftermath(size > KIB(64) ? 2000 : size);
    printf("the wrong free was not noticed\n");
    return 4;
}
