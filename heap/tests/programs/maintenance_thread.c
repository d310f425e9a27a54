// The heap's own thread ends with the program's last other thread and before a fork by the only one; it is an
// ordinary thread on the processors that the process started with; no restriction of the program's own leaves
// it behind with more rights, and calls that want a process of one thread succeed.
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static const char *const NAME = "mayfly-maintain";

// The number of threads, and the id of the heap's own; 0 if there is none.
static int threads(int *own) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks, "no /proc");
    *own = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) {
        int id = atoi(entry->d_name);
        if (!id) continue;
        count++;
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", id);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file) && strncmp(name, NAME, strlen(NAME)) == 0) *own = id;
        if (file) fclose(file);
    }
    closedir(tasks);
    return count;
}

static int own_thread(void) {
    int own;
    threads(&own);
    return own;
}

static int count_threads(void) {
    int own;
    return threads(&own);
}

// Waits until the condition holds; every heap meets it, or never does.
#define AWAIT(condition, ...)                                  \
    do {                                                       \
        int left_ = 5000;                                      \
        while (!(condition) && left_-- > 0) usleep(1000);      \
        CHECK(left_ > 0, __VA_ARGS__);                         \
    } while (0)

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_gate(void *unused) {
    free(malloc(100));
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return unused;
}

static pthread_t start(void) {
    pthread_t thread;
    pthread_mutex_lock(&gate);
    CHECK(pthread_create(&thread, NULL, wait_at_gate, NULL) == 0, "pthread_create");
    return thread;
}

static void end(pthread_t thread) {
    pthread_mutex_unlock(&gate);
    pthread_join(thread, NULL);
}

// Runs in a child: restrictions hold for the rest of a process.
static void in_child(void (*test)(void), const char *name) {
    pid_t child = fork();
    if (child == 0) {
        test();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0, "%s: status %#x", name, status);
}
#define IN_CHILD(test) in_child(test, #test)

static int expected;  // whether this heap has a thread of its own

static void with_thread(void) {
    if (expected) AWAIT(own_thread(), "the heap's thread does not start");
}

static void test_ends(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread = start();
        with_thread();
        end(thread);
        AWAIT(count_threads() == 1, "%d threads after the last other has ended", count_threads());
    }
}

static void test_fork(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t thread = start();
        if (i % 2) with_thread();
        end(thread);
        pid_t child = fork();
        int own = own_thread();
        if (child == 0) _exit(own != 0);
        CHECK(!own, "the heap's thread runs beside the only thread that forks");
        int status;
        waitpid(child, &status, 0);
        CHECK(status == 0, "the child has the heap's thread");
    }
}

static void test_ordinary(void) {
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0, "sched_getaffinity");
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &one);
            break;
        }
    sched_setaffinity(0, sizeof one, &one);
    struct sched_param priority = {1};
    int is_fifo = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
    pthread_t thread = start();
    priority.sched_priority = 0;
    if (is_fifo) sched_setscheduler(0, SCHED_OTHER, &priority);
    with_thread();
    if (expected) {
        cpu_set_t now;
        AWAIT(sched_getscheduler(own_thread()) == SCHED_OTHER, "the heap's thread is a real-time one");
        AWAIT(sched_getaffinity(own_thread(), sizeof now, &now) == 0 && CPU_EQUAL(&now, &before),
              "the heap's thread is on %d processors, the process began on %d", CPU_COUNT(&now), CPU_COUNT(&before));
    }
    end(thread);
}

static void no_new_privileges(void) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
    CHECK(!own_thread(), "the heap's thread may gain privileges");
}

static void seccomp(unsigned long flags) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0, "seccomp");
    CHECK(!own_thread(), "the heap's thread has no filter");
}

static void test_restrictions(void) {
    pthread_t thread = start();
    with_thread();
    no_new_privileges();
    end(thread);
    // Nor does it start again.
    thread = start();
    free(malloc(5000));
    usleep(50000);
    CHECK(!own_thread(), "the heap's thread started after a restriction");
    seccomp(0);
    end(thread);
}

static void test_filter_of_all_threads(void) {
    pthread_t thread = start();
    with_thread();
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
    seccomp(SECCOMP_FILTER_FLAG_TSYNC);
    end(thread);
}

// A process of one thread, but for the heap's own.
static void alone(void) {
    pthread_t thread = start();
    with_thread();
    end(thread);
    AWAIT(count_threads() == 1 + !!own_thread(), "the ended thread stays");
}

static void test_unshare(void) {
    alone();
    CHECK(unshare(CLONE_NEWUSER) == 0 || errno != EINVAL, "unshare(CLONE_NEWUSER): %s", strerror(errno));
}

static void test_setns(void) {
    int file = open("/proc/self/ns/mnt", O_RDONLY);
    alone();
    CHECK(setns(file, CLONE_NEWNS) == 0 || errno != EINVAL, "setns: %s", strerror(errno));
}

static void look_for_thread(void) {
    pthread_t thread = start();
    for (int left = 300; left-- && !own_thread();) usleep(1000);
    expected = own_thread() != 0;
    end(thread);
    _exit(expected);
}

int main(int count, char **arguments) {
    // With "off" the heap has been asked to have no thread.
    pid_t child = fork();
    if (child == 0) look_for_thread();
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status), "status %#x", status);
    expected = WEXITSTATUS(status);
    CHECK(count == 1 || strcmp(arguments[1], "off") != 0 || !expected, "the heap has a thread although that is off");
    IN_CHILD(test_ends);
    IN_CHILD(test_fork);
    IN_CHILD(test_ordinary);
    IN_CHILD(test_restrictions);
    IN_CHILD(test_filter_of_all_threads);
    IN_CHILD(test_unshare);
    IN_CHILD(test_setns);
    return 0;
}
