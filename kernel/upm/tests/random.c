// Random operations on memory that is advised all the time, checked against a model of its content.
//
// A coordinator keeps N processes running. Each has a few mappings (anonymous, huge, private file, one that a
// thread writes to all the time) and a model: which content each of their pages has. It writes, advises, forks,
// execs, moves, unmaps, drops, swaps out, locks, changes its user, exits or is killed, and compares memory with the
// model. The coordinator meanwhile compacts memory, takes memory blocks away and back, reclaims, and switches ksmd and
// the domain: a user's or everyone's.
// Contents are few, so that identical pages are everywhere. At the end all counters must be where they began.
//
// Runs as root in a throw-away VM: it changes system settings.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MADV_UPM 0x5550
#define MADV_UNUPM 0x5551
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGE = 4096, WORDS = PAGE / 8, REGIONS = 5, MOST = 512, COMMON = 24, FILE_CONTENT = 1000, WORKERS = 16 };
enum { ANON_A, ANON_B, HUGE_C, FILE_D, THREAD_E };
// Timeout of every wait. It takes far less, but the machine may be slow and busy.
enum { PATIENCE_S = 300 };
enum { NOBODY = 65534 };
static const int region_pages[REGIONS] = {96, 160, 512, 64, 12};

struct shared {  // between all processes
	_Atomic long ops, advised, eagain, forks, execs, kills, users, offlined, failures;
	long limit;
	char failure[400];
};

struct model {
	uint32_t content;  // 0: zeros
	uint32_t tweak;    // one word differs; 0: none
};

static struct shared *shared;
static uint64_t rng;
static uint8_t *base[REGIONS];
static struct model model[REGIONS][MOST];
static int slot, file_fd, depth, children;
static int use_ksmd, use_offline, use_swap, swap_seen;
static uint64_t counts[16];  // values that the writing thread has stored
static _Atomic int thread_run;

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint32_t below(uint32_t n)
{
	rng = mix(rng + 1);
	return rng % n;
}

static void fail(const char *format, ...)
{
	va_list args;

	if (shared->failures++ == 0) {
		va_start(args, format);
		vsnprintf(shared->failure, sizeof shared->failure, format, args);
		va_end(args);
	}
	_exit(3);
}

static long number(const char *path)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof text - 1) < 0)
		text[0] = 0;
	close(fd);
	return atol(text);
}

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY), ok;

	if (fd < 0)
		return 0;
	ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return ok;
}

static void fill(uint64_t *page, struct model m)
{
	for (int i = 0; i < WORDS; i++)
		page[i] = m.content ? mix((uint64_t)m.content << 32 | (i & 63)) : 0;
	if (m.tweak)
		page[m.tweak % WORDS] ^= m.tweak;
}

static void check(int r, int first, int n)
{
	uint64_t want[WORDS];

	for (int i = first; i < first + n; i++) {
		uint64_t *page = (uint64_t *)(base[r] + (size_t)i * PAGE);

		fill(want, model[r][i]);
		if (memcmp(page, want, PAGE)) {
			int w = 0;

			while (page[w] == want[w])
				w++;
			fail("worker %d depth %d region %d page %d at %p word %d: %016lx, should be %016lx (content %u tweak %u)",
			     slot, depth, r, i, page, w, page[w], want[w], model[r][i].content, model[r][i].tweak);
		}
	}
}

static void check_all(void)
{
	for (int r = 0; r < THREAD_E; r++)
		check(r, 0, region_pages[r]);
}

static void forget(int r, int first, int n)
{
	for (int i = first; i < first + n; i++)
		model[r][i] = (struct model){r == FILE_D ? FILE_CONTENT + i % 8 : 0, 0};
}

static void map(int r)
{
	size_t size = (size_t)region_pages[r] * PAGE;
	int flags = MAP_PRIVATE | (r == FILE_D ? 0 : MAP_ANONYMOUS);
	uint8_t *p = mmap(NULL, r == HUGE_C ? 2 * size : size, PROT_READ | PROT_WRITE, flags,
			  r == FILE_D ? file_fd : -1, 0);

	if (p == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	if (r == HUGE_C) {  // aligned, and no more than that: munmap, mremap then touch nothing else
		uint8_t *aligned = (uint8_t *)(((uintptr_t)p + size - 1) & -size);

		if (aligned > p)
			munmap(p, aligned - p);
		munmap(aligned + size, p + size - aligned);
		p = aligned;
		madvise(p, size, MADV_HUGEPAGE);
	}
	base[r] = p;
	forget(r, 0, region_pages[r]);
}

// Detects lost updates: the thread has the last value that it stored in each page.
static void *writer(void *arg)
{
	uint64_t state = mix(slot + 77), done = 0;

	(void)arg;
	while (thread_run) {
		int i = (state = mix(state)) % region_pages[THREAD_E];
		uint64_t *page = (uint64_t *)(base[THREAD_E] + (size_t)i * PAGE);

		if (page[5] != counts[i])
			fail("worker %d: an update was lost: page %d has %lu, should be %lu", slot, i, page[5], counts[i]);
		page[5] = ++counts[i];
		if (done++ % 64 == 0)
			usleep(500);
	}
	return NULL;
}

static int advise(uint8_t *p, size_t size, int advice)
{
	int ret = madvise(p, size, advice);

	if (ret && errno != EAGAIN && errno != EBUSY && errno != EINTR)
		fail("worker %d: madvise(%p, %zu, %#x): %s", slot, p, size, advice, strerror(errno));
	if (ret && errno == EAGAIN)
		shared->eagain++;
	return ret;
}

static void one(int top);

static void child(void)
{
	struct timespec nap = {0, 1000000 * (long)below(30)};
	int ways = below(4);

	depth++;
	children = 0;
	thread_run = 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	check_all();
	for (int i = below(12); i > 0; i--)
		one(0);
	nanosleep(&nap, NULL);
	check_all();
	if (ways == 0)
		raise(SIGKILL);
	_exit(0);
}

static void op_fork(void)
{
	pid_t pid;

	if (depth > 1 || children == 4)
		return;
	shared->forks++;
	pid = fork();
	if (pid == 0)
		child();
	children += pid > 0;
}

static void reap(int block)
{
	int status;

	while (waitpid(-1, &status, block ? 0 : WNOHANG) > 0) {
		children--;
		if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
			fail("worker %d: a child died of signal %d", slot, WTERMSIG(status));
	}
}

static void op_exec(void)
{
	char s[16], seed[32];

	if (depth)
		return;
	check_all();
	shared->execs++;
	snprintf(s, sizeof s, "%d", slot);
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)mix(rng));
	if (seteuid(0))
		fail("seteuid: %s", strerror(errno));
	execl("/proc/self/exe", "random", "--worker", s, seed, NULL);
}

// One random operation. top: a worker, which may also exec, exit and be killed.
static void one(int top)
{
	int r = below(REGIONS), n = region_pages[r], first = below(n), len = 1 + below(n - first);
	uint8_t *p = base[r] + (size_t)first * PAGE;
	size_t size = (size_t)len * PAGE;
	struct model m = {1 + below(COMMON), 0};
	uint32_t what = below(1000);

	shared->ops++;
	if (r == THREAD_E) {  // the thread owns its content: only advice here
		if (depth == 0)
			advise(p, size, what < 700 ? MADV_UPM : what < 800 ? MADV_UNUPM : MADV_PAGEOUT);
		return;
	}
	if (what < 280) {
		shared->advised++;
		advise(p, size, MADV_UPM);
	} else if (what < 480) {  // write a few pages
		for (int i = first; i < first + len && i < first + 24; i++) {
			if (below(8) == 0)
				m.content = 1 + below(COMMON);
			fill((uint64_t *)(base[r] + (size_t)i * PAGE), m);
			model[r][i] = m;
		}
	} else if (what < 600) {  // write one word
		uint64_t *page = (uint64_t *)p;

		m = model[r][first];
		if (m.tweak)
			page[m.tweak % WORDS] ^= m.tweak;
		m.tweak = below(3) ? 1 + below(2) * WORDS : 1 + below(1 << 20);
		page[m.tweak % WORDS] ^= m.tweak;
		model[r][first] = m;
	} else if (what < 690) {
		check(r, first, len);
	} else if (what < 720) {
		advise(p, size, MADV_DONTNEED);
		forget(r, first, len);
	} else if (what < 745) {
		advise(p, size, MADV_UNUPM);
	} else if (what < 790) {
		advise(p, size, MADV_PAGEOUT);
	} else if (what < 815 && r != HUGE_C) {  // move the whole mapping
		uint8_t *room = mmap(NULL, (size_t)n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		uint8_t *moved = mremap(base[r], (size_t)n * PAGE, (size_t)n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);

		if (moved != MAP_FAILED)
			base[r] = moved;
		else if (errno != EFAULT && errno != ENOMEM && errno != EINTR)  // several VMAs: EFAULT
			fail("mremap: %s", strerror(errno));
		else
			munmap(room, (size_t)n * PAGE);
		check(r, 0, n);
	} else if (what < 835) {  // a hole, and fresh memory in its place
		munmap(p, size);
		if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | (r == FILE_D ? 0 : MAP_ANONYMOUS),
			 r == FILE_D ? file_fd : -1, r == FILE_D ? first * PAGE : 0) != p)
			fail("mmap again: %s", strerror(errno));
		forget(r, first, len);
	} else if (what < 850) {  // and one that is advised as a hole
		munmap(p, size);
		if (madvise(base[r], (size_t)n * PAGE, MADV_UPM) == 0 || (errno != ENOMEM && errno != EBUSY && errno != EAGAIN))
			fail("a hole was advised: %s, should be ENOMEM", strerror(errno));
		if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | (r == FILE_D ? 0 : MAP_ANONYMOUS),
			 r == FILE_D ? file_fd : -1, r == FILE_D ? first * PAGE : 0) != p)
			fail("mmap again: %s", strerror(errno));
		forget(r, first, len);
	} else if (what < 875) {
		mprotect(p, size, PROT_READ);
		advise(p, size, MADV_UPM);
		check(r, first, len);
		if (mprotect(p, size, PROT_READ | PROT_WRITE))
			fail("mprotect: %s", strerror(errno));
	} else if (what < 890) {
		mlock(p, size);
		advise(p, size, MADV_UPM);
		munlock(p, size);
	} else if (what < 905) {
		madvise(base[HUGE_C], MOST * PAGE, MADV_COLLAPSE);
	} else if (what < 920) {
		advise(p, size, below(2) ? MADV_MERGEABLE : MADV_UNMERGEABLE);
	} else if (what < 940) {  // the kernel writes: read(2) into advised memory
		if (pread(file_fd, p, PAGE, 0) == PAGE)
			model[r][first] = (struct model){FILE_CONTENT, 0};
		else
			fail("pread: %s", strerror(errno));
	} else if (what < 978) {
		op_fork();
	} else if (what < 985) {  // for later advice; children of user nobody's processes are nobody's
		if (depth == 0 && !seteuid(below(2) ? NOBODY : 0))
			shared->users++;
	} else if (top && what < 990) {
		op_exec();
	} else if (top && what < 994) {
		check_all();
		_exit(0);
	} else if (top && what < 997) {
		shared->kills++;
		raise(SIGKILL);
	}
}

static int worker(void)
{
	pthread_t thread;

	file_fd = open("/tmp/upm.random", O_RDONLY);
	if (file_fd < 0)
		fail("open: %s", strerror(errno));
	for (int r = 0; r < REGIONS; r++)
		map(r);
	thread_run = 1;
	if (pthread_create(&thread, NULL, writer, NULL))
		fail("no thread");
	for (long i = 0; shared->ops < shared->limit && !shared->failures; i++) {
		one(1);
		reap(0);
		if (i % 64 == 63)
			check_all();
	}
	check_all();
	thread_run = 0;
	pthread_join(thread, NULL);
	reap(1);
	return 0;
}

// A block of movable memory goes offline and comes back, as unplugging a DIMM or virtio-mem does.
static void op_offline(void)
{
	static char block[80];
	char path[120];
	glob_t all;

	if (block[0]) {
		snprintf(path, sizeof path, "%s/state", block);
		if (put(path, "online_movable"))
			block[0] = 0;
		return;
	}
	if (glob("/sys/devices/system/memory/memory*", 0, NULL, &all))
		return;
	for (int tries = 0; tries < 4 && !block[0]; tries++) {
		const char *name = all.gl_pathv[below(all.gl_pathc)];
		char zones[40] = "";
		int fd;

		snprintf(path, sizeof path, "%s/valid_zones", name);
		fd = open(path, O_RDONLY);
		if (fd < 0)
			continue;
		if (read(fd, zones, sizeof zones - 1) > 0 && !strncmp(zones, "Movable", 7)) {
			snprintf(path, sizeof path, "%s/state", name);
			alarm(5);  // it tries for ever otherwise
			if (put(path, "offline")) {
				snprintf(block, sizeof block, "%s", name);
				shared->offlined++;
			}
			alarm(0);
		}
		close(fd);
	}
	globfree(&all);
}

static void nothing(int sig)
{
	(void)sig;
}

static void disturb(void)
{
	static const char *const runs[] = {"0", "1", "1", "2"}, *const domains[] = {"user", "everyone"};

	shared->ops++;
	switch (below(7)) {
	case 0:
		put("/proc/sys/vm/compact_memory", "1");
		break;
	case 1:
		if (use_offline)
			op_offline();
		break;
	case 2:
		if (use_swap)
			put("/sys/fs/cgroup/upm/memory.reclaim", "8M");
		break;
	case 3:
		if (use_ksmd)
			put("/sys/kernel/mm/ksm/run", runs[below(4)]);
		break;
	case 4:
		put("/proc/sys/vm/drop_caches", "5");
		break;
	case 5:
		if (below(8) == 0)
			put("/sys/kernel/mm/upm/domain", domains[below(2)]);
		break;
	default:
		usleep(2000);
	}
	if (use_swap && !swap_seen && number("/sys/fs/cgroup/upm/memory.swap.current") > 0)
		swap_seen = 1;
}

static pid_t start(int which, uint64_t seed)
{
	pid_t pid = fork();

	if (pid == 0) {
		if (use_swap)
			put("/sys/fs/cgroup/upm/cgroup.procs", "0");
		slot = which;
		rng = mix(seed ^ mix(which));
		_exit(worker());
	}
	return pid;
}

static int back_to_zero(const char *path, int seconds)
{
	for (int i = 0; i < seconds * 20; i++) {
		if (number(path) == 0)
			return 1;
		usleep(50000);
	}
	fprintf(stderr, "random: %s is %ld at the end, was 0\n", path, number(path));
	return 0;
}

static struct shared *share(void)
{
	int fd = open("/tmp/upm.shared", O_RDWR);
	struct shared *s = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (s == MAP_FAILED) {
		perror("random: /tmp/upm.shared");
		exit(1);
	}
	close(fd);
	return s;
}

int main(int argc, char **argv)
{
	long workers = 8, ops = 5000, generation = 0, report = 0;
	uint64_t seed = 1, page[WORDS];
	pid_t pids[WORKERS];
	int status, ok = 1, fd;

	if (argc == 4 && !strcmp(argv[1], "--worker")) {  // after exec
		slot = atoi(argv[2]);
		rng = strtoull(argv[3], NULL, 10);
		shared = share();
		return worker();
	}
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--ksmd"))
			use_ksmd = 1;
		else if (!strcmp(argv[i], "--offline"))
			use_offline = 1;
		else if (!strcmp(argv[i], "--swap"))
			use_swap = 1;
		else if (!strcmp(argv[i], "--ops") && i + 1 < argc)
			ops = atol(argv[++i]);
		else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--workers") && i + 1 < argc && atol(argv[i + 1]) <= WORKERS)
			workers = atol(argv[++i]);
		else {
			fprintf(stderr, "usage: random [--ops N] [--seed N] [--workers N] [--ksmd] [--offline] [--swap]\n"
					"--ksmd: switch ksmd between run=0, 1 and 2; --offline: take memory blocks away;\n"
					"--swap: workers live in a small memory cgroup (needs swap space)\n");
			return 2;
		}
	}
	if (number("/sys/kernel/mm/upm/stable_pages") < 0) {
		fprintf(stderr, "random: no /sys/kernel/mm/upm: this kernel is without CONFIG_UPM\n");
		return 1;
	}
	if (use_swap && (mkdir("/sys/fs/cgroup/upm", 0755), put("/sys/fs/cgroup/cgroup.subtree_control", "+memory"),
			 !put("/sys/fs/cgroup/upm/memory.high", "28M"))) {
		fprintf(stderr, "random: no memory cgroup at /sys/fs/cgroup/upm\n");
		return 1;
	}
	fd = open("/tmp/upm.random", O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (int i = 0; i < region_pages[FILE_D]; i++) {
		fill(page, (struct model){FILE_CONTENT + i % 8, 0});
		if (write(fd, page, PAGE) != PAGE)
			perror("/tmp/upm.random"), exit(1);
	}
	fd = open("/tmp/upm.shared", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (ftruncate(fd, PAGE))
		perror("/tmp/upm.shared"), exit(1);
	shared = share();
	shared->limit = ops;
	rng = seed;
	sigaction(SIGALRM, &(struct sigaction){.sa_handler = nothing}, NULL);

	struct timespec t0, t1;
	clock_gettime(CLOCK_MONOTONIC, &t0);
	for (int i = 0; i < workers; i++)
		pids[i] = start(i, mix(seed + generation++));
	while (shared->ops < ops && !shared->failures) {
		pid_t pid = waitpid(-1, &status, WNOHANG);

		for (int i = 0; pid > 0 && i < workers; i++) {
			if (pids[i] != pid)
				continue;
			if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
				fprintf(stderr, "random: worker %d died of signal %d\n", i, WTERMSIG(status)), ok = 0;
			pids[i] = start(i, mix(seed + generation++));
		}
		if (!ok)
			break;
		disturb();
		usleep(3000);
		if (shared->ops / 5000 != report) {
			report = shared->ops / 5000;
			printf("%ld operations, %ld stable pages\n", shared->ops, number("/sys/kernel/mm/upm/stable_pages"));
			fflush(stdout);
		}
	}
	while (waitpid(-1, &status, 0) > 0)
		if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
			fprintf(stderr, "random: a worker died of signal %d\n", WTERMSIG(status)), ok = 0;
	clock_gettime(CLOCK_MONOTONIC, &t1);
	for (int i = 0; use_offline && i < 3; i++)
		op_offline();

	if (shared->failures)
		fprintf(stderr, "random: %s\n", shared->failure), ok = 0;
	if (use_ksmd)  // ksmd leaves entries of dead processes until it runs again
		put("/sys/kernel/mm/ksm/run", "2");
	ok &= back_to_zero("/sys/kernel/mm/upm/entries", PATIENCE_S);
	ok &= back_to_zero("/sys/kernel/mm/upm/stable_pages", PATIENCE_S);
	ok &= back_to_zero("/sys/kernel/mm/ksm/pages_shared", PATIENCE_S);
	ok &= back_to_zero("/sys/kernel/mm/ksm/pages_sharing", PATIENCE_S);
	ok &= back_to_zero("/sys/kernel/mm/ksm/general_profit", PATIENCE_S);
	if (use_ksmd)
		put("/sys/kernel/mm/ksm/run", "0");
	if (use_swap && !swap_seen)
		fprintf(stderr, "random: nothing was ever swapped out\n"), ok = 0;
	double seconds = t1.tv_sec - t0.tv_sec + (t1.tv_nsec - t0.tv_nsec) / 1e9;
	printf("random: %s: seed %llu, %ld operations in %.0f s (%.0f/s): %ld advices (%ld EAGAIN), %ld forks, %ld execs, "
	       "%ld kills, %ld changes of user, %ld blocks offlined; merged %ld inserted %ld replaced %ld copied %ld busy %ld\n",
	       ok ? "ok" : "FAILED", (unsigned long long)seed, shared->ops, seconds, shared->ops / seconds, shared->advised,
	       shared->eagain, shared->forks, shared->execs, shared->kills, shared->users, shared->offlined,
	       number("/sys/kernel/mm/upm/merged"), number("/sys/kernel/mm/upm/inserted"),
	       number("/sys/kernel/mm/upm/replaced"), number("/sys/kernel/mm/upm/copied"), number("/sys/kernel/mm/upm/busy"));
	return !ok;
}
