// variants: as-200 as-1024 data-200 data-1024 space-0 maps-0
// `limits LIMIT MIB`: under RLIMIT_AS, RLIMIT_DATA, a full address space or a full map table the program gets
// memory up to a fair part of the limit, then NULL and ENOMEM (or bad_alloc). Live objects keep their
// contents, and freed memory can be reused.
#include "check.h"
#include <initializer_list>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

static size_t limit_mib;

// Takes objects of one size until NULL. The list is threaded through the objects: no other memory is needed.
struct Node { Node *next; uint64_t id; };
static Node *take_all(size_t size, size_t *bytes, size_t most) {
    Node *list = nullptr;
    uint64_t id = 0;
    *bytes = 0;
    errno = 0;
    while (*bytes < most) {
        Node *node = (Node *)malloc(size);
        if (!node) break;
        node->next = list;
        node->id = id++;
        fill(node + 1, size - sizeof *node, node->id);
        list = node;
        *bytes += size;
    }
    if (*bytes < most) CHECK(errno == ENOMEM, "malloc(%zu) gave NULL with errno %d", size, errno);
    return list;
}
static void give_back(Node *list, size_t size) {
    while (list) {
        expect(list + 1, size - sizeof *list, list->id, "taken until memory ran out");
        Node *next = list->next;
        free(list);
        list = next;
    }
}

static void until_exhausted(size_t least_part_percent, size_t most) {
    for (size_t size : {size_t(64), MIB(1), KIB(5), KIB(300), MIB(7)}) {
        if (limit_mib > 500 && size < MIB(1) && size > 64) continue;  // saves time: the same as under the small limit
        size_t bytes, again;
        Node *list = take_all(size, &bytes, most);
        void *p = nullptr;
        if (list && bytes < most) {  // nothing is left: all other calls must fail, too
            errno = 0;
            CHECK(!calloc(1, MIB(64)) && errno == ENOMEM, "calloc at the limit, errno %d", errno);
            CHECK(posix_memalign(&p, 4096, MIB(64)) == ENOMEM, "posix_memalign at the limit");
            errno = 0;
            CHECK(!realloc(list, MIB(512)) && errno == ENOMEM, "realloc at the limit, errno %d", errno);
            bool threw = false;
            try {
                opaque(::operator new(MIB(64)));
            } catch (const std::bad_alloc &) {
                threw = true;
            }
            CHECK(threw, "new at the limit");
        }
        give_back(list, size);
        CHECK(bytes >= MIB(limit_mib) / 100 * least_part_percent, "only %zu KiB of %zu MiB could be had in objects of %zu bytes",
              bytes >> 10, limit_mib, size);
        list = take_all(size, &again, most);
        give_back(list, size);
        CHECK(again >= bytes / 10 * 9, "freed %zu KiB in objects of %zu bytes, then only %zu KiB could be had", bytes >> 10, size, again >> 10);
    }
}

static pthread_barrier_t exhausted;
static void *little_thread(void *) {  // continues after memory ran out and was returned
    free(malloc(1));
    pthread_barrier_wait(&exhausted);
    for (size_t size = 8; size < KIB(64); size *= 2) {
        void *p = malloc(size);
        CHECK(p, "malloc(%zu) in a thread", size);
        memset(p, 1, size);
        free(p);
    }
    return nullptr;
}

static void full_address_space() {
    struct Hole { void *at; size_t size; } *holes = (Hole *)mmap(nullptr, MIB(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int count = 0;
    for (size_t size = (size_t)1 << 46; size >= 4096; size /= 2)
        for (void *p; count < 60000 && (p = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) != MAP_FAILED;)
            holes[count++] = {p, size};
    size_t bytes;
    Node *list = take_all(KIB(100), &bytes, MIB(400));
    give_back(list, KIB(100));
    list = take_all(64, &bytes, MIB(400));
    give_back(list, 64);
    CHECK(!malloc((size_t)1 << 40) && errno == ENOMEM, "a TiB out of a full address space, errno %d", errno);
    munmap(holes[0].at, holes[0].size);  // the largest: there is room again
    list = take_all(KIB(100), &bytes, MIB(100));
    CHECK(bytes >= MIB(100), "after room was made only %zu KiB could be had", bytes >> 10);
    give_back(list, KIB(100));
}

static void full_map_table() {
    size_t pages = 140000;
    char *wall = (char *)mmap(nullptr, pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *before[100];
    for (int i = 0; i < 100; i++) memset(before[i] = malloc(KIB(100) * (size_t)(i + 1)), 1, KIB(100));
    size_t used = 0;
    while (used + 1 < pages && mprotect(wall + used * 4096, 4096, PROT_READ) == 0) used += 2;
    CHECK(used + 1 < pages, "the map table (vm.max_map_count) did not fill up");
    for (int round = 0; round < 3; round++) {
        for (int i = round; i < 100; i += 2) {  // freeing must work although no mapping can be split
            free(before[i]);
            before[i] = malloc(KIB(100) * (size_t)(100 - i));
            if (before[i]) memset(before[i], 2, KIB(100));
            else CHECK(errno == ENOMEM, "errno %d", errno);
        }
        for (int i = 0; i < 100000; i++) {
            char *p = (char *)malloc((size_t)i % 3000);
            if (p) *p = 1;
            free(p);
        }
    }
    for (void *p : before) free(p);
    munmap(wall, pages * 4096);
    size_t bytes;
    Node *list = take_all(KIB(100), &bytes, MIB(100));
    CHECK(bytes >= MIB(100), "after maps were given back only %zu KiB could be had", bytes >> 10);
    give_back(list, KIB(100));
}

int main(int argc, char **argv) {
    CHECK(argc == 3 || argc == 4, "usage: limits as|data|space|maps MIB");
    limit_mib = strtoul(argv[2], nullptr, 10);
    if (argc == 3 && (argv[1][0] == 'a' || argv[1][0] == 'd')) {  // again, so that the heap starts under the limit
        rlimit limit{(rlim_t)MIB(limit_mib), (rlim_t)MIB(limit_mib)};
        CHECK(setrlimit(argv[1][0] == 'a' ? RLIMIT_AS : RLIMIT_DATA, &limit) == 0, "setrlimit");
        execl("/proc/self/exe", argv[0], argv[1], argv[2], "limited", nullptr);
        CHECK(false, "exec: %s", strerror(errno));
    }
    if (argv[1][0] == 's') {
        full_address_space();
    } else if (argv[1][0] == 'm') {
        full_map_table();
    } else {
        pthread_t thread;
        pthread_barrier_init(&exhausted, nullptr, 2);
        CHECK(pthread_create(&thread, nullptr, little_thread, nullptr) == 0, "a thread under the limit");
        // 45% of the limit at least: libraries, stacks (8 MiB) and the heap's own tables take the rest.
        until_exhausted(45, MIB(limit_mib) * 2);
        pthread_barrier_wait(&exhausted);
        pthread_join(thread, nullptr);
    }
    return 0;
}
