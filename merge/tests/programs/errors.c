// Memory that cannot be merged is refused with one clear line, and stays unchanged. `errors CASE` prints
// errno's number, a tab and the line; the runner checks them.
// variants: started by the runner
#include "merge_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGES = 16 };

static char *page_block(int protection, int flags) {
    char *block = mmap(NULL, PAGES * PAGE, protection, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(block != MAP_FAILED, "%m");
    return block;
}

static char *filled(void) {
    // Low, where nothing else is mapped: holes stay holes.
    char *block = mmap((void *)0x10000000, PAGES * PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(block != MAP_FAILED, "%m");
    fill(block, PAGES * PAGE, 1);
    return block;
}

static void *idle(void *argument) {
    (void)argument;
    pause();
    return NULL;
}

// The first address of the named line of /proc/self/maps.
static char *mapping(const char *name) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long first = 0;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, name)) {
            sscanf(line, "%lx", &first);
            break;
        }
    fclose(maps);
    CHECK(first, "no mapping named %s", name);
    return (char *)first;
}

static int advise_own_stack(void *unused) {
    (void)unused;
    char here;
    char *page = (char *)((uintptr_t)&here & ~(uintptr_t)(PAGE - 1));
    return mayfly_advise(page, PAGE, 0);
}

static void *in_thread(void *argument) {
    static int result;
    static char text[512];
    result = ((int (*)(void *))argument)(NULL);
    // The line belongs to the thread that failed.
    snprintf(text, sizeof text, "%d\t%s", result ? errno : 0, mayfly_merge_error());
    return text;
}

// Another user from now on, as a server's workers: the process is not dumpable any more.
static void change_user(void) {
    enum { NOBODY = 65534 };
    CHECK(!setgid(NOBODY) && !setuid(NOBODY), "%m");
}

int main(int count, char **words) {
    CHECK(count >= 2, "usage: errors CASE");
    const char *name = words[1];
    int result = -2;
    bool contents = false;
    char *block = NULL;
    if (count > 2 && !strcmp(words[2], "threads")) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, idle, NULL), "%m");
    }
    if (!strcmp(name, "address")) {
        result = mayfly_advise(filled() + 8, PAGE, 0);
    } else if (!strcmp(name, "length")) {
        result = mayfly_advise(filled(), PAGE + 1, 0);
    } else if (!strcmp(name, "flag")) {
        result = mayfly_advise(filled(), PAGE, 0x4000);
    } else if (!strcmp(name, "unmapped")) {
        block = filled();
        munmap(block, PAGES * PAGE);
        result = mayfly_advise(block, PAGES * PAGE, 0);
    } else if (!strcmp(name, "hole")) {
        block = filled();
        munmap(block + 4 * PAGE, PAGE);
        result = mayfly_advise(block, PAGES * PAGE, 0);
    } else if (!strcmp(name, "wraps")) {
        result = mayfly_advise(filled(), (size_t)-PAGE, 0);
    } else if (!strcmp(name, "null")) {
        result = mayfly_advise(NULL, PAGE, 0);
    } else if (!strcmp(name, "kernel")) {
        result = mayfly_advise((void *)0xffff800000000000u, PAGE, 0);
    } else if (!strcmp(name, "stack")) {
        result = advise_own_stack(NULL);
    } else if (!strcmp(name, "thread_stack")) {
        // Must not freeze the stack it runs on.
        pthread_t thread;
        void *text;
        CHECK(!pthread_create(&thread, NULL, in_thread, (void *)advise_own_stack), "%m");
        pthread_join(thread, &text);
        puts(text);
        return 0;
    } else if (!strcmp(name, "vvar") || !strcmp(name, "vdso")) {
        char line[16];
        snprintf(line, sizeof line, "[%s]", name);
        result = mayfly_advise(mapping(line), PAGE, 0);
    } else if (!strcmp(name, "device")) {
        int fd = open("/dev/mem", O_RDONLY);
        block = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
        if (block == MAP_FAILED) return puts("skip\t/dev/mem cannot be mapped here"), 0;
        result = mayfly_advise(block, PAGE, 0);
    } else if (!strcmp(name, "shared")) {
        result = mayfly_advise(page_block(PROT_READ | PROT_WRITE, MAP_SHARED), PAGES * PAGE, 0);
    } else if (!strcmp(name, "shared_file")) {
        int fd = memfd_create("shared", 0);
        CHECK(!ftruncate(fd, PAGE), "%m");
        result = mayfly_advise(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), PAGE, 0);
    } else if (!strcmp(name, "past_end")) {
        // A private mapping beyond its file's end: reading it is a SIGBUS.
        int fd = memfd_create("short", 0);
        CHECK(!ftruncate(fd, PAGE), "%m");
        result = mayfly_advise(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0), 4 * PAGE,
                               MAYFLY_ADVISE_QUIET);
    } else if (!strcmp(name, "writable_file")) {
        int fd = memfd_create("file", 0);
        CHECK(!ftruncate(fd, PAGE), "%m");
        result = mayfly_advise(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0), PAGE, 0);
    } else if (!strcmp(name, "locked")) {
        block = filled();
        contents = true;
        if (mlock(block, PAGE)) return puts("skip\tmlock is not permitted"), 0;
        result = mayfly_advise(block, PAGES * PAGE, 0);
    } else if (!strcmp(name, "unreadable")) {
        result = mayfly_advise(page_block(PROT_NONE, MAP_PRIVATE), PAGES * PAGE, 0);
    } else if (!strcmp(name, "huge")) {
        block = mmap(NULL, MIB(2), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
        if (block == MAP_FAILED) return puts("skip\tno huge pages are reserved"), 0;
        result = mayfly_advise(block, MIB(2), 0);
    } else if (!strcmp(name, "plain") || !strcmp(name, "no_system_calls") || !strcmp(name, "quiet")) {
        // The runner has removed something: the daemon, its room, a permission.
        unsigned flags = *name == 'p' ? 0 : *name == 'n' ? MAYFLY_ADVISE_NO_SYSCALLS : MAYFLY_ADVISE_QUIET;
        block = filled();
        contents = true;
        result = mayfly_advise(block, PAGES * PAGE, flags);
    } else if (!strcmp(name, "sealed")) {
        block = filled();
        contents = true;
        if (syscall(462, block, PAGES * PAGE, 0)) return puts("skip\ta kernel without mseal (Linux 6.10)"), 0;
        result = mayfly_advise(block, PAGES * PAGE, 0);
    } else if (!strcmp(name, "droppable")) {
        // MAP_DROPPABLE
        block = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, 0x08 | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) return puts("skip\ta kernel without MAP_DROPPABLE (Linux 6.11)"), 0;
        fill(block, PAGES * PAGE, 1);
        result = mayfly_advise(block, PAGES * PAGE, 0);
    } else if (!strcmp(name, "changed user")) {
        // The page map was opened when the library was loaded, and each child's when it was forked.
        bool closes = count > 2 && !strcmp(words[2], "closes"), forks = count > 2 && !strcmp(words[2], "forks");
        block = filled();
        contents = true;
        if (closes) close_range(3, ~0u, 0);
        pid_t child = forks ? fork() : 0;
        if (child) {
            int status;
            waitpid(child, &status, 0);
            return status != 0;
        }
        change_user();
        result = mayfly_advise(block, PAGES * PAGE, 0);
    } else if (!strcmp(name, "big")) {
        block = mmap(NULL, MIB(64), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fill(block, MIB(64), 2);
        result = mayfly_advise(block, MIB(64), 0);
        int e = errno;
        expect(block, MIB(64), 2, "afterwards");
        errno = e;
    } else if (!strcmp(name, "wait")) {
        result = mayfly_advise_wait(12345, 0);
    } else if (!strcmp(name, "one_of_many")) {
        // None is merged: memory that could be merged stays where it was.
        block = filled();
        contents = true;
        struct iovec all[] = {{block, PAGES * PAGE}, {page_block(PROT_READ | PROT_WRITE, MAP_SHARED), PAGE}};
        result = mayfly_advise_all(all, 2, 0);
        int e = errno;
        struct mayfly_merge_stats after;
        CHECK(!mayfly_merge_stats(&after, sizeof after) && !after.pages, "%llu pages", (unsigned long long)after.pages);
        CHECK(!mayfly_advise_all(NULL, 0, 0), "nothing is no failure");
        errno = e;
    } else if (!strcmp(name, "unadvise_address")) {
        result = mayfly_unadvise(filled() + 1, PAGE);
    } else if (!strcmp(name, "unadvise_unmapped")) {
        block = filled();
        munmap(block, PAGES * PAGE);
        result = mayfly_unadvise(block, PAGES * PAGE);
    } else {
        CHECK(0, "no case %s", name);
    }
    int e = result ? errno : 0;
    if (contents) expect(block, PAGES * PAGE, 1, "afterwards");
    CHECK(result == 0 || result == -1, "returned %d", result);
    printf("%d\t%s\n", e, result ? mayfly_merge_error() : "");
    return 0;
}
