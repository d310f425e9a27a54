/* The first process of a simulated guest. It gets ready, waits until the kernel has nothing left to do, and runs one
 * command between the marks of the measured region. What the command writes goes to a file in memory, and to the
 * console only afterwards: a serial port is slow, and its driver's work is not the program's.
 *
 * /sim/command: the words, each ended by a zero byte. /sim/environment: NAME=VALUE, likewise. Lines for the launcher
 * begin with "@sim ". */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* nopl imm32(%rax,%rax,1): see docs/sim.md. The same instruction at the same place for all marks of this program. */
#define MARK(code, first) \
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4d4d0000 + %c0" ::"i"(code), "D"((unsigned long)(first)), "S"(0UL) : "memory")
enum { REGION_BEGIN = 1, REGION_END = 2, READY = 3 };

#define OUTPUT "/sim/output"
#define IDLE_SECONDS 4 /* of the guest's time: by then what the kernel does late after booting is done */

static void say(const char *line) {
    fputs(line, stdout);
    fflush(stdout);
}

static void power_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    _exit(1);
}

/* The strings of a file of strings that end with zero bytes; ends with a null pointer. */
static char **strings(const char *path) {
    static char buffer[4][65536];
    static int used;
    char *text = buffer[used++];
    int file = open(path, O_RDONLY);
    ssize_t size = file < 0 ? 0 : read(file, text, sizeof buffer[0] - 1);
    if (file >= 0) close(file);
    if (size < 0) size = 0;
    size_t count = 0;
    for (ssize_t at = 0; at < size; at++) count += text[at] == 0;
    char **list = calloc(count + 1, sizeof *list);
    if (!list) power_off();
    char *next = text;
    for (size_t index = 0; index < count; index++) {
        list[index] = next;
        next += strlen(next) + 1;
    }
    return list;
}

/* Whether there is such a program, and where: execvp would tell only after the region has begun. */
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

int main(void) {
    mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755), mkdir("/tmp", 01777), mkdir("/sim", 0755);
    mount("proc", "/proc", "proc", 0, 0);
    mount("sysfs", "/sys", "sysfs", 0, 0);
    mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
    mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777");
    int console = open("/dev/console", O_RDWR);
    if (console >= 0) dup2(console, 0), dup2(console, 1), dup2(console, 2);

    clearenv();
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/sim/bin", 1);
    setenv("HOME", "/tmp", 1);
    setenv("LANG", "C.UTF-8", 1);
    for (char **one = strings("/sim/environment"); *one; one++) putenv(*one);
    char **command = strings("/sim/command");
    char path[4096];
    if (!command[0] || !find(command[0], path, sizeof path)) {
        printf("@sim missing %s\n", command[0] ? command[0] : "");
        power_off();
    }
    int output = open(OUTPUT, O_RDWR | O_CREAT | O_TRUNC, 0644);
    int nothing = open("/dev/null", O_RDONLY);
    say("@sim ready\n");
    struct timespec idle = {IDLE_SECONDS, 0};
    while (nanosleep(&idle, &idle) && errno == EINTR) {}

    MARK(READY, 0);
    /* The machine runs from the next translation on; a little work and sleep warm what it begins with. */
    struct timespec moment = {0, 50 * 1000 * 1000};
    nanosleep(&moment, NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(nothing, 0), dup2(output, 1), dup2(output, 2);
        setsid();
        chdir("/tmp");
        MARK(REGION_BEGIN, 0);
        execv(path, command);
        dprintf(2, "%s: %s\n", path, strerror(errno));
        _exit(126);
    }
    int status = 126 << 8;
    if (child > 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    int result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    MARK(REGION_END, result);
    show_output();
    printf("\n@sim exit %d\n", result);
    fflush(stdout);
    power_off();
}
