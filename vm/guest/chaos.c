// chaos SEED MIB END: an instance that behaves badly within MIB of memory, and checks that no other process wrote to it.
//
// It touches and frees memory, forks, starts threads and programs, maps files privately and writes to them, and leaves
// things behind in tmpfs and System V shared memory. END says how it ends, after a few seconds or, with `stay`, not:
// stay, exit, kill (SIGKILL to itself), crash (SIGSEGV), overflow (more memory than there is). Every page it owns
// carries its tag; one with another content is reported, with exit status 77.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, REGIONS = 16, WRONG = 77 };

static struct region {
    char *start;
    size_t bytes;
} regions[REGIONS];
static unsigned seed;
static uint64_t tag;
static size_t budget; // bytes that all regions together may have

static unsigned pick(unsigned below) { return rand_r(&seed) % below; }

static void fill(char *start, size_t bytes, uint64_t value) {
    for (size_t at = 0; at < bytes; at += PAGE)
        *(uint64_t *)(start + at) = value ^ at;
}

static void check(const char *start, size_t bytes, uint64_t value, const char *what) {
    for (size_t at = 0; at < bytes; at += PAGE)
        if (*(const uint64_t *)(start + at) != (value ^ at)) {
            printf("wrong content in %s at %p\n", what, (void *)(start + at));
            fflush(stdout);
            _exit(WRONG);
        }
}

static char *anonymous(size_t bytes) {
    char *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        _exit(3);
    return start;
}

static void touch_or_free(void) {
    struct region *one = &regions[pick(REGIONS)];
    if (one->start) {
        check(one->start, one->bytes, tag, "private memory");
        munmap(one->start, one->bytes);
        one->start = 0;
        return;
    }
    one->bytes = (1 + pick(budget / REGIONS / PAGE)) * (size_t)PAGE;
    one->start = anonymous(one->bytes);
    fill(one->start, one->bytes, tag);
}

static void *thread_main(void *unused) {
    size_t bytes = (1 + pick(256)) * (size_t)PAGE;
    char *start = anonymous(bytes);
    fill(start, bytes, ~tag);
    check(start, bytes, ~tag, "a thread's memory");
    munmap(start, bytes);
    return unused;
}

static void in_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, thread_main, 0) == 0)
        pthread_join(thread, 0);
}

static void in_child(void) {
    pid_t child = fork();
    if (child < 0)
        return;
    if (child == 0) {
        struct region *one = &regions[pick(REGIONS)];
        if (one->start) { // copy on write, in the same partition
            fill(one->start, one->bytes / 2 & ~(size_t)(PAGE - 1), ~tag);
            check(one->start, one->bytes / 2 & ~(size_t)(PAGE - 1), ~tag, "a child's copy");
        }
        if (pick(3) == 0) // left behind: the parent does not wait long
            usleep(pick(300000));
        if (pick(2) == 0)
            execl("/bin/sh", "sh", "-c", "x=$(echo a b c | tr a-c d-f); test \"$x\" = 'd e f'", (char *)0);
        _exit(0);
    }
    if (pick(2) == 0)
        waitpid(child, 0, 0);
}

static void map_file(void) {
    static const char folder[] = "/usr/lib/x86_64-linux-gnu";
    DIR *list = opendir(folder);
    if (!list)
        return;
    char path[512] = "";
    struct dirent *entry;
    for (unsigned skip = pick(120); (entry = readdir(list)) && skip > 0; skip--)
        if (strstr(entry->d_name, ".so"))
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    closedir(list);
    int file = open(path, O_RDONLY);
    off_t bytes = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    if (bytes > 0) {
        volatile char *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        if (start != MAP_FAILED) {
            for (off_t at = 0; at < bytes; at += PAGE) {
                char seen = start[at];
                if (at / PAGE % 16 == 0)
                    start[at] = seen + 1; // a private copy: anonymous from now on
            }
            munmap((void *)start, bytes);
        }
    }
    if (file >= 0)
        close(file);
}

static void write_tmpfs(void) {
    char path[64];
    snprintf(path, sizeof path, "%s/chaos-%u", pick(2) ? "/tmp" : "/dev/shm", pick(4));
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    size_t bytes = (1 + pick(128)) * (size_t)PAGE;
    if (file < 0 || ftruncate(file, bytes))
        return;
    char *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (start == MAP_FAILED)
        return;
    fill(start, bytes, tag);
    check(start, bytes, tag, "tmpfs");
    munmap(start, bytes);
    if (pick(3) == 0)
        unlink(path);
}

static void write_system_v(void) {
    static unsigned segments; // left behind on purpose
    if (segments >= 3)
        return;
    int id = shmget(IPC_PRIVATE, 16 * PAGE, IPC_CREAT | 0600);
    char *start = id < 0 ? (void *)-1 : shmat(id, 0, 0);
    if (start == (void *)-1)
        return;
    segments++;
    fill(start, 16 * PAGE, tag);
    check(start, 16 * PAGE, tag, "shared memory");
    shmdt(start);
}

static void end(const char *how, size_t limit) {
    if (!strcmp(how, "exit"))
        _exit(0);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    if (!strcmp(how, "crash")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    size_t bytes = limit * 2;
    fill(anonymous(bytes), bytes, tag);
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: chaos SEED MIB stay|exit|kill|crash|overflow\n");
        return 2;
    }
    seed = atoi(words[1]);
    size_t limit = strtoul(words[2], 0, 10) << 20;
    budget = limit / 2;
    tag = (uint64_t)seed << 32 | 0x6d617966;
    signal(SIGCHLD, SIG_DFL);
    unsigned steps = !strcmp(words[3], "stay") ? ~0u : 10 + pick(40);
    void (*const actions[])(void) = {touch_or_free, touch_or_free, touch_or_free, in_thread, in_child, map_file, write_tmpfs, write_system_v};
    for (unsigned step = 0; step < steps; step++) {
        actions[pick(sizeof actions / sizeof *actions)]();
        while (waitpid(-1, 0, WNOHANG) > 0)
            ;
        usleep(20000 + pick(60000));
        if (steps == ~0u && step > 60)
            sleep(1); // many of these share two vCPUs
    }
    end(words[3], limit);
}
