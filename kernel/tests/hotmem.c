/*
 * Behaves like function instances do, and checks where the pages lie. Runs in the guest, one case per call:
 * `hotmem CASE NODE [ARGUMENT]` gets the partition of NODE and exits with 0 if all is as it must be, else prints
 * what is not. kernel/tests/test_hotmem.py calls it and plugs and unplugs meanwhile.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/hotmem.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define SHARED 1 /* node of the shared partition */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

static int device(void)
{
	int fd = open("/dev/hotmem", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		fail("/dev/hotmem: %s", strerror(errno));
	return fd;
}

/* The node got, or minus errno. */
static int assign(int node, unsigned int flags, uint64_t timeout_ms)
{
	struct hotmem_assign req = { .flags = flags, .node = node, .timeout_ns = timeout_ms * 1000000 };
	int fd = device(), ret = ioctl(fd, HOTMEM_ASSIGN, &req) ? -errno : req.node;

	close(fd);
	return ret;
}

static int query(void)
{
	int fd = device(), node = -2;

	if (ioctl(fd, HOTMEM_QUERY, &node))
		fail("HOTMEM_QUERY: %s", strerror(errno));
	close(fd);
	return node;
}

static void take(int node)
{
	int got = assign(node, 0, 5000);

	if (got != node)
		fail("asked for node %d, got %d", node, got);
}

static char *map(size_t size, int flags)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	return at;
}

static char *anon(size_t size)
{
	return map(size, MAP_PRIVATE | MAP_ANONYMOUS);
}

static void touch(char *at, size_t size)
{
	for (size_t i = 0; i < size; i += PAGE)
		at[i]++;
}

/* Every page of the range is present and on @node. */
static void check(const char *what, char *at, size_t size, int node)
{
	for (size_t i = 0; i < size; i += PAGE) {
		void *page = at + i;
		int status = -1;

		if (syscall(SYS_move_pages, 0, 1ul, &page, NULL, &status, 0))
			fail("%s: move_pages: %s", what, strerror(errno));
		if (status != node)
			fail("%s: page %zu is on node %d, not %d", what, i / PAGE, status, node);
	}
}

static void wait_ok(const char *what, pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || status)
		fail("%s: child ended with status %#x", what, status);
}

static void *thread(void *node)
{
	char *at = anon(MIB);

	touch(at, MIB);
	check("thread", at, MIB, (int)(long)node);
	return NULL;
}

static void case_anon(int node)
{
	char *at = anon(8 * MIB), stack[64 * 1024], *heap;
	pthread_t id;

	take(node);
	if (query() != node)
		fail("query says %d", query());
	if (assign(-1, HOTMEM_NONBLOCK, 0) != -EBUSY)
		fail("a second partition was given");
	touch(at, 8 * MIB);
	check("anon", at, 8 * MIB, node);
	memset(stack, 1, sizeof(stack));
	heap = malloc(MIB);
	memset(heap, 1, MIB);
	check("heap", (char *)(((uintptr_t)heap + PAGE) & ~(PAGE - 1)), MIB - 2 * PAGE, node);
	pthread_create(&id, NULL, thread, (void *)(long)node);
	pthread_join(id, NULL);
}

/* Nothing of an earlier instance, nor of the host, is ever seen. */
static void case_zero(int node)
{
	size_t size = 160 * MIB;
	uint64_t *at;

	take(node);
	at = (uint64_t *)anon(size);
	for (size_t i = 0; i < size / sizeof(*at); i += 64) {
		at[i]++; /* a page of its own, not the zero page */
		if (at[i] != 1 || at[i + 1] || at[i + 63])
			fail("memory at %zu was not zero", i * sizeof(*at));
	}
	memset(at, 0xa5, size);
	check("zeroed", (char *)at, size, node);
}

static void case_fork(int node)
{
	char *at;
	pid_t pid;

	take(node);
	at = anon(4 * MIB);
	touch(at, 4 * MIB);
	pid = fork();
	if (!pid) {
		if (query() != node)
			fail("the child has node %d", query());
		check("before copy-on-write", at, 4 * MIB, node);
		touch(at, 4 * MIB);
		check("after copy-on-write", at, 4 * MIB, node);
		pid = fork();
		if (!pid) {
			touch(at, 4 * MIB);
			check("grandchild", at, 4 * MIB, node);
			_exit(0);
		}
		wait_ok("grandchild", pid);
		_exit(0);
	}
	wait_ok("fork", pid);
	check("parent", at, 4 * MIB, node);
}

static int all_on(const char *what, int node);

/* The new program of an assigned process, and everything it has, stays. */
static void case_exec(int node)
{
	char number[16];

	take(node);
	snprintf(number, sizeof(number), "%d", node);
	execl("/proc/self/exe", "hotmem", "execed", number, NULL);
	fail("exec: %s", strerror(errno));
}

static void case_execed(int node)
{
	char *at = anon(2 * MIB);

	if (query() != node)
		fail("after exec: node %d", query());
	touch(at, 2 * MIB);
	check("after exec", at, 2 * MIB, node);
	if (all_on("after exec", node))
		fail("after exec: anonymous pages elsewhere");
}

/* numa_maps: no anonymous page of this process on another node. Returns how many lines have one. */
static int all_on(const char *what, int node)
{
	FILE *maps = fopen("/proc/self/numa_maps", "r");
	char line[4096], own[16];
	int bad = 0;

	snprintf(own, sizeof(own), "N%d=", node);
	while (fgets(line, sizeof(line), maps)) {
		char *word, *save, copy[4096];
		int is_anon = strstr(line, " anon=") && !strstr(line, " file=");

		strcpy(copy, line);
		for (word = strtok_r(copy, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
			if (is_anon && word[0] == 'N' && word[1] >= '0' && word[1] <= '9' &&
			    strncmp(word, own, strlen(own))) {
				printf("%s: %s", what, line);
				bad++;
			}
	}
	fclose(maps);
	return bad;
}

static long smaps_kib(char *at, const char *field)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	unsigned long start, end;
	char line[512];
	long kib = -1;
	int inside = 0;

	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = (unsigned long)at >= start && (unsigned long)at < end;
		else if (inside && !strncmp(line, field, strlen(field)))
			kib = atol(line + strlen(field) + 1);
	}
	fclose(smaps);
	return kib;
}

static char *aligned(size_t size)
{
	char *at = anon(size + 2 * MIB);

	return (char *)(((uintptr_t)at + 2 * MIB - 1) & ~(2 * MIB - 1));
}

static void case_thp(int node)
{
	char *at = aligned(8 * MIB), *small = aligned(2 * MIB);

	take(node);
	madvise(at, 8 * MIB, MADV_HUGEPAGE);
	memset(at, 1, 8 * MIB); /* touch() reads first: that would map zero pages */
	if (smaps_kib(at, "AnonHugePages:") < 8 * 1024)
		fail("only %ld KiB are huge", smaps_kib(at, "AnonHugePages:"));
	check("huge page", at, 8 * MIB, node);
	/* what khugepaged does, asked for */
	touch(small, 2 * MIB);
	if (madvise(small, 2 * MIB, MADV_COLLAPSE))
		fail("MADV_COLLAPSE: %s", strerror(errno));
	check("collapsed", small, 2 * MIB, node);
}

static void case_file(int node)
{
	int fd = open("/proc/self/exe", O_RDONLY), out;
	size_t size = 2 * MIB;
	char *at, *buffer = malloc(MIB), *shared;

	take(node);
	/* a fresh file of the root file system (tmpfs): its pages are made now */
	out = open("/tmp/file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	memset(buffer, 7, MIB);
	if (write(out, buffer, MIB) != MIB || write(out, buffer, MIB) != MIB)
		fail("write: %s", strerror(errno));
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, out, 0);
	for (size_t i = 0; i < size; i += PAGE)
		if (((volatile char *)at)[i] != 7)
			fail("wrong data");
	check("file in memory", at, size, node);
	touch(at, size);
	check("private copy of a file page", at, size, node);
	shared = map(size, MAP_SHARED | MAP_ANONYMOUS);
	touch(shared, size);
	check("shared memory", shared, size, node);
	close(fd);
	unlink("/tmp/file");
}

/* NODE PATH: a file on a disk, read and mapped. */
static void case_disk(int node, const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat st;
	volatile char sum = 0;
	char *at;

	take(node);
	if (fd < 0 || fstat(fd, &st))
		fail("%s: %s", path, strerror(errno));
	at = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	for (off_t i = 0; i < st.st_size; i += PAGE)
		sum += at[i];
	check("page cache", at, st.st_size & ~(PAGE - 1), SHARED);
}

static void page_out(char *at, size_t size)
{
	if (madvise(at, size, MADV_PAGEOUT))
		fail("MADV_PAGEOUT: %s", strerror(errno));
	if (smaps_kib(at, "Swap:") < (long)(size / 1024 / 2))
		fail("only %ld KiB were swapped out", smaps_kib(at, "Swap:"));
}

/* With swap on: out and in again, also what a child shares, also what it shares from before. */
static void case_swap(int node)
{
	size_t size = 16 * MIB;
	char *before = anon(4 * MIB), *at;
	pid_t pid, child;

	touch(before, 4 * MIB);
	page_out(before, 4 * MIB);
	pid = fork();
	if (!pid) {
		take(node);
		at = anon(size);
		touch(at, size);
		page_out(at, size);
		touch(at, size / 2);
		check("swapped in", at, size / 2, node);
		page_out(at, size);
		child = fork();
		touch(at, size);
		check(child ? "shared, swapped in" : "child, swapped in", at, size, node);
		if (!child)
			_exit(0);
		wait_ok("swap child", child);
		touch(before, 4 * MIB);
		check("from before", before, 4 * MIB, node);
		_exit(0);
	}
	wait_ok("swap", pid);
	for (size_t i = 0; i < 4 * MIB; i += PAGE)
		if (before[i] != 1)
			fail("wrong data");
	check("the parent's pages", before, 4 * MIB, 0);
}

static long mbind_(char *at, size_t size, int mode, int node, int flags)
{
	unsigned long mask[4] = { 0 };

	mask[node / 64] = 1ul << node % 64;
	return syscall(SYS_mbind, at, size, mode, mask, 257ul, flags);
}

static void case_escape(int node)
{
	size_t size = MIB, pages = size / PAGE;
	unsigned long mask[4] = { 0 }, to[4] = { 1 };
	void *list[256];
	int nodes[256], status[256];
	char *at = anon(size), *other = anon(size);
	struct iovec iov = { at, size };
	int pipes[2];

	/* no caller may name a partition */
	mask[node / 64] = 1ul << node % 64;
	if (!syscall(SYS_set_mempolicy, MPOL_BIND, mask, 257ul) || errno != EINVAL)
		fail("set_mempolicy to a partition was allowed");
	if (!mbind_(at, size, MPOL_BIND, node, 0))
		fail("mbind to a partition was allowed");
	take(node);
	/* and an assigned process does not get out */
	if (mbind_(at, size, MPOL_BIND, 0, 0))
		fail("mbind: %s", strerror(errno));
	touch(at, size);
	check("mbind before touch", at, size, node);
	mask[node / 64] = 0;
	mask[0] = 1;
	syscall(SYS_set_mempolicy, MPOL_BIND, mask, 257ul);
	touch(other, size);
	check("set_mempolicy", other, size, node);
	mbind_(at, size, MPOL_BIND, 0, MPOL_MF_MOVE);
	check("mbind with MOVE", at, size, node);
	for (size_t i = 0; i < pages; i++) {
		list[i] = at + i * PAGE;
		nodes[i] = 0;
	}
	syscall(SYS_move_pages, 0, pages, list, nodes, status, MPOL_MF_MOVE);
	check("move_pages", at, size, node);
	memset(mask, 0, sizeof(mask));
	mask[node / 64] = 1ul << node % 64;
	syscall(SYS_migrate_pages, 0, 257ul, mask, to);
	check("migrate_pages", at, size, node);
	/* pages given to a pipe */
	if (pipe(pipes) || vmsplice(pipes[1], &iov, 1, SPLICE_F_NONBLOCK) < 0)
		fail("vmsplice: %s", strerror(errno));
}

/* NODE MIB: use that much, in two threads, and end. */
static void *fill(void *mib)
{
	size_t size = (size_t)mib * MIB / 2;

	touch(anon(size), size);
	return NULL;
}

static void case_fill(int node, const char *mib)
{
	void *size = (void *)strtoul(mib, NULL, 0);
	pthread_t id;

	take(node);
	pthread_create(&id, NULL, fill, size);
	fill(size);
	pthread_join(id, NULL);
}

/* NODE MIB: hold that much until killed. */
static void case_hold(int node, const char *mib)
{
	size_t size = strtoul(mib, NULL, 0) * MIB;
	char *at = anon(size);

	take(node);
	touch(at, size);
	printf("holding\n");
	fflush(stdout);
	for (;;)
		pause();
}

/* NODE PATH: leave 2 MiB in a file, and live until killed. */
static void case_keep(int node, const char *path)
{
	int out = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	size_t size = 2 * MIB;
	char *buffer = malloc(size);

	take(node);
	memset(buffer, 7, size);
	if (write(out, buffer, size) != (ssize_t)size)
		fail("write: %s", strerror(errno));
	printf("holding\n");
	fflush(stdout);
	for (;;)
		pause();
}

/* NODE MIB: use more than there is; a child dies of it, and no other process. */
static void case_overflow(int node, const char *mib)
{
	size_t size = strtoul(mib, NULL, 0) * MIB;
	int status;
	pid_t pid = fork();

	if (!pid) {
		take(node);
		touch(anon(size), size);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail("the process that overflowed ended with status %#x", status);
}

static void on_alarm(int signal)
{
	(void)signal;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* NODE is taken or absent: waiting for it ends as it must. */
static void case_wait(int node)
{
	struct sigaction action = { .sa_handler = on_alarm };
	/* again and again: on a busy machine the first may come before the wait has begun */
	struct itimerval timer = { .it_value = { .tv_usec = 200000 }, .it_interval = { .tv_usec = 200000 } }, none = { 0 };
	struct hotmem_assign bad = { .flags = 0x80, .node = node };
	double start = seconds();
	int ret = assign(node, HOTMEM_NONBLOCK, 0);

	if (ret != -EAGAIN)
		fail("non-blocking: %d", ret);
	/* far less; but the CPU may have other things to do */
	if (seconds() - start > 30)
		fail("non-blocking took %f s", seconds() - start);
	start = seconds();
	ret = assign(node, 0, 300);
	if (ret != -ETIMEDOUT || seconds() - start < 0.29)
		fail("timeout: %d after %f s", ret, seconds() - start);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	ret = assign(node, 0, 0);
	if (ret != -EINTR)
		fail("signal: %d", ret);
	setitimer(ITIMER_REAL, &none, NULL);
	if (assign(0, 0, 0) != -ENODEV || assign(200, 0, 0) != -ENODEV || assign(SHARED, 0, 0) != -ENODEV)
		fail("a node that is no partition was accepted");
	if (ioctl(device(), HOTMEM_ASSIGN, &bad) != -1 || errno != EINVAL)
		fail("unknown flags were accepted");
	if (!vfork())
		_exit(assign(node, HOTMEM_NONBLOCK, 0) == -EINVAL ? 0 : 1);
	wait(&ret);
	if (ret)
		fail("a vfork child could assign its parent");
}

/* NODE: sleep until it is free, then say so. */
static void case_sleep(int node)
{
	int ret = assign(node, 0, 900000);

	if (ret != node)
		fail("slept, got %d", ret);
	printf("awake\n");
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "", *arg = argc > 3 ? argv[3] : "";
	int node = argc > 2 ? atoi(argv[2]) : -1;

	if (!strcmp(name, "anon")) case_anon(node);
	else if (!strcmp(name, "zero")) case_zero(node);
	else if (!strcmp(name, "fork")) case_fork(node);
	else if (!strcmp(name, "exec")) case_exec(node);
	else if (!strcmp(name, "execed")) case_execed(node);
	else if (!strcmp(name, "thp")) case_thp(node);
	else if (!strcmp(name, "file")) case_file(node);
	else if (!strcmp(name, "disk")) case_disk(node, arg);
	else if (!strcmp(name, "swap")) case_swap(node);
	else if (!strcmp(name, "escape")) case_escape(node);
	else if (!strcmp(name, "fill")) case_fill(node, arg);
	else if (!strcmp(name, "hold")) case_hold(node, arg);
	else if (!strcmp(name, "keep")) case_keep(node, arg);
	else if (!strcmp(name, "overflow")) case_overflow(node, arg);
	else if (!strcmp(name, "wait")) case_wait(node);
	else if (!strcmp(name, "sleep")) case_sleep(node);
	else fail("no such case: %s", name);
	return 0;
}
