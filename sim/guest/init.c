/* The first process of a simulated guest. It gets ready, waits until the kernel has nothing left to do, and pauses the
 * machine: that is the snapshot from which every run starts. Then it reads the command from the machine (QEMU's fw_cfg, read
 * byte by byte, so that it takes the same instructions each time), and runs that one command between the marks of the
 * measured region. What the command writes goes to a file in memory, and to the console only afterwards: a serial
 * port is slow, and its driver's work is not the program's.
 *
 * With MAYFLY_REGION=first or warm in its environment the program itself marks from when on it is timed and counted; with
 * import it marks the end of the counted part.
 *
 * opt/mayfly/command: the words, each ended by a zero byte. opt/mayfly/environment: NAME=VALUE, likewise.
 * opt/mayfly/files: the host's files, each as its path here and its size, both ended by a zero byte, and its bytes. Lines for
 * the launcher begin with "@sim ". */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* nopl imm32(%rax,%rax,1): see docs/sim.md. The same instruction at the same place for all marks of this program. */
#define MARK(code, first, second)                                                                                      \
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0000 + %c0" ::"i"(code), "D"((unsigned long)(first)), \
                     "S"((unsigned long)(second))                                                                    \
                     : "memory")
enum { REGION_BEGIN = 1, REGION_END = 2, READY = 3, KERNEL_FUNCTION = 0x40 };

#define OUTPUT "/sim/output"
#define IDLE_SECONDS 4 /* of the guest's time: by then the kernel's late work after booting is done */

static void say(const char *line) {
    fputs(line, stdout);
    fflush(stdout);
}

static void power_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    _exit(1);
}

/* QEMU's fw_cfg device: a selector, and a port from which the selected item is read. */
enum { SELECTOR = 0x510, DATA = 0x511, DIRECTORY = 0x19, PANIC = 0x505 };

static uint32_t number(int bytes) {
    uint32_t value = 0;
    while (bytes-- > 0) value = value << 8 | inb(DATA);
    return value;
}

/* The item of that name, with a zero byte behind it; *size is -1 if there is none. */
static char *item(const char *name, long *size) {
    outw(DIRECTORY, SELECTOR);
    *size = -1;
    uint16_t key = 0;
    for (uint32_t many = number(4); many > 0; many--) {
        uint32_t bytes = number(4);
        uint16_t its_key = number(2);
        number(2);
        char its_name[56];
        for (int i = 0; i < 56; i++) its_name[i] = inb(DATA);
        if (strcmp(its_name, name) == 0) *size = bytes, key = its_key;
    }
    char *content = calloc(*size < 0 ? 1 : *size + 1, 1);
    if (!content) power_off();
    if (*size >= 0) outw(key, SELECTOR);
    for (long at = 0; at < *size; at++) content[at] = inb(DATA);
    return content;
}

/* The strings of an item of strings that end with zero bytes; ends with a null pointer. */
static char **strings(const char *name) {
    long size;
    char *text = item(name, &size);
    size_t count = 0;
    for (long at = 0; at < size; at++) count += text[at] == 0;
    char **list = calloc(count + 1, sizeof *list);
    if (!list) power_off();
    for (size_t index = 0; index < count; index++) {
        list[index] = text;
        text += strlen(text) + 1;
    }
    return list;
}

/* The folders above a path, those that are missing. */
static void make_folders(const char *path) {
    char above[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
        mkdir(above, 0755);
    }
}

/* Files of the host's: the program, a library for it, those that its command names. The guest's own files stay as they are. */
static void take_files(void) {
    long size;
    char *all = item("opt/mayfly/files", &size);
    for (char *at = all; at < all + size;) {
        const char *path = at;
        at += strlen(at) + 1;
        long bytes = atol(at), wrote;
        at += strlen(at) + 1;
        make_folders(path);
        int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
        if (file < 0 && errno != EEXIST) {
            printf("@sim kept out %s: %s\n", path, strerror(errno));
            power_off();
        }
        for (long done = 0; file >= 0 && done < bytes; done += wrote)
            if ((wrote = write(file, at + done, bytes - done)) <= 0) {
                printf("@sim kept out %s: %s\n", path, strerror(errno));
                power_off();
            }
        close(file);
        at += bytes;
    }
    free(all);
}

/* Functions of the kernel whose calls the simulator observes, with their addresses and their ends. The first two allocate pages,
 * the third frees the page table of a process that has exited, and through one of the others every page is freed. */
static const char *const functions[] = {"__alloc_pages_noprof", "alloc_pages_bulk_noprof", "pgd_free",
                                        "free_unref_page",      "__free_pages_ok",         "free_unref_folios"};
enum { FUNCTIONS = sizeof functions / sizeof *functions };
static unsigned long addresses[FUNCTIONS], ends[FUNCTIONS];

static void find_functions(void) {
    FILE *symbols = fopen("/proc/kallsyms", "r");
    unsigned long address;
    char kind, name[512], rest[512];
    /* The kernel's own symbols come by address: a function ends where the next one begins. */
    while (symbols && fgets(rest, sizeof rest, symbols)) {
        if (sscanf(rest, "%lx %c %511s", &address, &kind, name) != 3) continue;
        for (int i = 0; i < FUNCTIONS; i++) {
            if (addresses[i] && !ends[i] && address > addresses[i]) ends[i] = address;
            if (strcmp(name, functions[i]) == 0) addresses[i] = address;
        }
    }
    if (symbols) fclose(symbols);
    for (int i = 0; i < FUNCTIONS; i++)
        if (!ends[i]) {
            printf("@sim this kernel has no %s\n", functions[i]);
            power_off();
        }
}

/* Whether there is such a program, and where: execvp would report it only after the region has begun. */
static int find(const char *name, char *path, size_t size) {
    if (strchr(name, '/')) {
        snprintf(path, size, "%s", name);
        return access(path, X_OK) == 0;
    }
    char folders[4096];
    snprintf(folders, sizeof folders, "%s", getenv("PATH"));
    for (char *folder = strtok(folders, ":"); folder; folder = strtok(NULL, ":")) {
        snprintf(path, size, "%s/%s", folder, name);
        if (access(path, X_OK) == 0) return 1;
    }
    return 0;
}

static void show_output(void) {
    static char buffer[65536];
    struct stat status;
    int file = open(OUTPUT, O_RDONLY);
    if (file < 0 || fstat(file, &status)) return;
    printf("@sim output %lld\n", (long long)status.st_size);
    fflush(stdout);
    for (ssize_t size; (size = read(file, buffer, sizeof buffer)) > 0;)
        for (ssize_t at = 0, wrote; at < size; at += wrote)
            if ((wrote = write(1, buffer + at, size - at)) <= 0) return;
}

/* No device gives this guest randomness, and the first program to ask for some would wait until the kernel has made it:
 * 500 million instructions. These bytes are the same in each run. */
static void seed(void) {
    struct {
        struct rand_pool_info head;
        unsigned char bytes[32];
    } pool = {.head = {.entropy_count = 256, .buf_size = 32}};
    int file = open("/dev/urandom", O_RDWR);
    if (file < 0 || ioctl(file, RNDADDENTROPY, &pool)) {
        say("@sim this kernel takes no randomness\n");
        power_off();
    }
    close(file);
}

static void set(const char *path, const char *value) {
    int file = open(path, O_WRONLY);
    if (file < 0 || write(file, value, strlen(value)) < 0) {
        printf("@sim this kernel takes no %s in %s\n", value, path);
        power_off();
    }
    close(file);
}

/* A program's addresses are the same in each run, unless another layout is configured: then its stack, heap and
 * mappings begin where randomness of this number puts them. */
static void lay_out(const char *number) {
    unsigned char bytes[32];
    memset(bytes, atoi(number) & 255, sizeof bytes);
    int file = open("/dev/urandom", O_RDWR);
    if (file < 0 || write(file, bytes, sizeof bytes) != sizeof bytes || ioctl(file, RNDRESEEDCRNG)) {
        say("@sim this kernel takes no randomness\n");
        power_off();
    }
    close(file);
    set("/proc/sys/kernel/randomize_va_space", "2");
}

int main(void) {
    mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755), mkdir("/tmp", 01777), mkdir("/sim", 0755);
    mount("proc", "/proc", "proc", 0, 0);
    mount("sysfs", "/sys", "sysfs", 0, 0);
    mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
    mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777");
    int console = open("/dev/console", O_RDWR);
    if (console >= 0) dup2(console, 0), dup2(console, 1), dup2(console, 2);

    if (ioperm(SELECTOR, 2, 1) || ioperm(PANIC, 1, 1)) {
        say("@sim this kernel lets no process talk to devices\n");
        power_off();
    }
    seed();
    find_functions();
    struct timespec idle = {IDLE_SECONDS, 0};
    while (nanosleep(&idle, &idle) && errno == EINTR) {}
    say("@sim snapshot\n");
    outb(1, PANIC); /* QEMU pauses here, and continues from here in every run */

    clearenv();
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/sim/bin", 1);
    setenv("HOME", "/tmp", 1);
    setenv("LANG", "C.UTF-8", 1);
    for (char **one = strings("opt/mayfly/environment"); *one; one++) putenv(*one);
    char **command = strings("opt/mayfly/command");
    if (getenv("MAYFLY_LAYOUT")) lay_out(getenv("MAYFLY_LAYOUT"));
    if (getenv("MAYFLY_HUGE_PAGES")) set("/sys/kernel/mm/transparent_hugepage/enabled", getenv("MAYFLY_HUGE_PAGES"));
    take_files();
    char path[4096];
    if (!command[0] || !find(command[0], path, sizeof path)) {
        printf("@sim missing %s\n", command[0] ? command[0] : "");
        power_off();
    }
    int output = open(OUTPUT, O_RDWR | O_CREAT | O_TRUNC, 0644);
    int nothing = open("/dev/null", O_RDONLY);
    say("@sim ready\n");

    for (int i = 0; i < FUNCTIONS; i++) MARK(KERNEL_FUNCTION, addresses[i], (ends[i] - addresses[i]) << 8 | i);
    const char *region = getenv("MAYFLY_REGION");
    int is_warm = region && (strcmp(region, "first") == 0 || strcmp(region, "warm") == 0);
    if (!is_warm) MARK(READY, 0, 0);
    /* The machine runs from the next translation on; a little work and sleep warm its caches. */
    struct timespec moment = {0, 50 * 1000 * 1000};
    nanosleep(&moment, NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(nothing, 0), dup2(output, 1), dup2(output, 2);
        setsid();
        chdir("/tmp");
        if (!is_warm) MARK(REGION_BEGIN, 0, 0);
        execv(path, command);
        dprintf(2, "%s: %s\n", path, strerror(errno));
        _exit(126);
    }
    int status = 126 << 8;
    if (child > 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    int result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    MARK(REGION_END, result, 0);
    show_output();
    printf("\n@sim exit %d\n", result);
    fflush(stdout);
    power_off();
}
