// How long merging takes: MADV_UPM, and ksmd at its fastest, on the same processes. Prints one JSON object.
//
// N processes have the same SIZE MiB, but for a private share. They advise one after the other, as instances of a
// function start one after the other (UPM section VI-E: the first call only adds pages, the others merge); then others,
// with the same memory again, all at once. Then ksmd merges the same memory. Memory saved is net of the kernel's tables.
// Runs as root in a throw-away VM: it changes system settings.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MADV_UPM 0x5550

enum { PAGE = 4096, WORDS = PAGE / 8, MOST = 64 };
enum { WORK_CREATE, WORK_UPM, WORK_UPM_AGAIN, WORK_KSM, WORK_CHECK, WORK_END };

struct answer {
	double wall, cpu;
	long bad;
};

static const char *const steps[] = {"walk", "split", "protect", "hash", "lock", "reverse", "search", "compare", "merge", "insert"};

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static long number(const char *format, const char *name)
{
	char path[128], text[64] = "";
	int fd;

	snprintf(path, sizeof path, format, name);
	fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
		die(path);
	close(fd);
	return atol(text);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

// Memory of the processes and of the kernel's tables. (Free memory does not include pages on the CPUs' own lists.)
static double used_mib(void)
{
	char line[128], name[32];
	double kib, sum = 0;
	FILE *f = fopen("/proc/meminfo", "r");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%31[^:]: %lf", name, &kib) == 2 &&
		    (!strcmp(name, "AnonPages") || !strcmp(name, "Slab") || !strcmp(name, "PageTables")))
			sum += kib / 1024;
	if (f)
		fclose(f);
	return sum;
}

// ksmd's CPU time so far: fields 14 and 15 of its stat
static double ksmd_cpu(void)
{
	static long pid;
	char path[64], text[512] = "", name[32] = "";
	struct dirent *entry;
	unsigned long user, system;
	DIR *proc;
	FILE *f;

	for (proc = opendir("/proc"); !pid && (entry = readdir(proc));) {
		snprintf(path, sizeof path, "/proc/%.20s/comm", entry->d_name);
		f = atol(entry->d_name) ? fopen(path, "r") : NULL;
		if (f && fgets(name, sizeof name, f) && !strcmp(name, "ksmd\n"))
			pid = atol(entry->d_name);
		if (f)
			fclose(f);
	}
	closedir(proc);
	snprintf(path, sizeof path, "/proc/%ld/stat", pid);
	f = fopen(path, "r");
	if (!f || !fgets(text, sizeof text, f) ||
	    sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		die("ksmd's stat");
	fclose(f);
	return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

// Page i of process `who`: the same for all, but for the private pages, which are spread evenly
static void fill(uint64_t *page, long i, int who, int private_percent)
{
	int own = i * private_percent / 100 != (i + 1) * private_percent / 100;
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + (own ? (uint64_t)(who + 1) << 48 : 0);

	for (int w = 0; w < WORDS; w++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		page[w] = x;
	}
}

static _Noreturn void instance(int who, long pages, int private_percent, int in, int out)
{
	struct answer a;
	uint64_t want[WORDS];
	char work, *p = NULL;
	size_t size = pages * PAGE;

	while (read(in, &work, 1) == 1 && work != WORK_END) {
		double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);

		a.bad = 0;
		if (work == WORK_CREATE) {
			if (p)
				munmap(p, size);
			p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (p == MAP_FAILED)
				die("mmap");
			madvise(p, size, MADV_NOHUGEPAGE);
			for (long i = 0; i < pages; i++)
				fill((uint64_t *)(p + i * PAGE), i, who, private_percent);
		} else if (work == WORK_UPM || work == WORK_UPM_AGAIN) {
			if (madvise(p, size, MADV_UPM))
				die("madvise(MADV_UPM)");
		} else if (work == WORK_KSM) {
			if (madvise(p, size, MADV_MERGEABLE))
				die("madvise(MADV_MERGEABLE)");
		} else {
			for (long i = 0; i < pages; i++) {
				fill(want, i, who, private_percent);
				a.bad += memcmp(p + i * PAGE, want, PAGE) != 0;
			}
		}
		a.wall = now(CLOCK_MONOTONIC) - wall;
		a.cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		if (write(out, &a, sizeof a) != sizeof a)
			die("write");
	}
	_exit(0);
}

static int to[MOST], from[MOST];

static void tell(int who, char work)
{
	if (write(to[who], &work, 1) != 1)
		die("an instance has ended");
}

static struct answer hear(int who)
{
	struct answer a;

	if (read(from[who], &a, sizeof a) != sizeof a)
		die("an instance has ended");
	if (a.bad)
		fprintf(stderr, "timing: process %d: %ld pages have wrong content\n", who, a.bad), exit(1);
	return a;
}

static struct answer ask(int who, char work)
{
	tell(who, work);
	return hear(who);
}

static void start(int n, long pages, int private_percent)
{
	for (int i = 0; i < n; i++) {
		int down[2], up[2];

		if (pipe(down) || pipe(up))
			die("pipe");
		if (fork() == 0) {
			for (int j = 0; j < i; j++)
				close(to[j]), close(from[j]);
			close(down[1]), close(up[0]);
			instance(i, pages, private_percent, down[0], up[1]);
		}
		close(down[0]), close(up[1]);
		to[i] = down[1], from[i] = up[0];
	}
	for (int i = 0; i < n; i++)
		ask(i, WORK_CREATE);
}

static void end(int n)
{
	for (int i = 0; i < n; i++) {
		char work = WORK_END;

		if (write(to[i], &work, 1) != 1)
			die("write");
		close(to[i]), close(from[i]);
	}
	while (wait(NULL) > 0)
		;
	for (int i = 0; i < 500 && (number("/sys/kernel/mm/%s", "upm/entries") || number("/sys/kernel/mm/%s", "upm/stable_pages")); i++)
		usleep(20000);
}

static long steps_ns(long *ns)
{
	long sum = 0;

	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
		sum += ns[i] = number("/sys/kernel/mm/upm/ns_%s", steps[i]);
	return sum;
}

// Table I: shares of the time of one call
static void shares(const char *which, const long *before, const long *after)
{
	double sum = 0;

	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
		sum += after[i] - before[i];
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
		printf("  \"upm.%s.%s_percent\": %.1f,\n", which, steps[i], sum ? 100 * (after[i] - before[i]) / sum : 0.0);
}

int main(int argc, char **argv)
{
	int n = 6, mib = 64, private_percent = 5, ksm = 1;
	double first, merging = 0, again = 0, at_once, cpu, cpu_at_once = 0, before, t0, cpu0, gib;
	long ns0[10], ns1[10], ns2[10], pages, want;
	struct answer a;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--processes") && i + 1 < argc)
			n = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--mib") && i + 1 < argc)
			mib = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--private") && i + 1 < argc)
			private_percent = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--no-ksm"))
			ksm = 0;
		else
			n = 0;
	}
	if (n < 2 || n > MOST || mib < 1 || private_percent < 0 || private_percent > 100) {
		fprintf(stderr, "usage: timing [--processes N] [--mib SIZE] [--private PERCENT] [--no-ksm]\n"
				"N from 2 to %d, each of SIZE MiB, PERCENT of it its own; --no-ksm: only MADV_UPM\n", MOST);
		return 2;
	}
	pages = (long)mib * 256;
	gib = mib / 1024.0;
	put("/sys/kernel/mm/ksm/run", "2");
	put("/sys/kernel/mm/ksm/run", "0");

	// The times, without the clock being read between the steps
	put("/sys/kernel/mm/upm/timing", "0");
	start(n, pages, private_percent);
	before = used_mib();
	a = ask(0, WORK_UPM);
	first = a.wall, cpu = a.cpu;
	for (int i = 1; i < n; i++) {
		a = ask(i, WORK_UPM);
		merging += a.wall / (n - 1), cpu += a.cpu;
	}
	printf("{\n  \"processes\": %d,\n  \"size_mib\": %d,\n  \"private_percent\": %d,\n", n, mib, private_percent);
	printf("  \"upm.saved_mib\": %.1f,\n  \"saved_ideal_mib\": %.1f,\n", before - used_mib(),
	       mib * (n - 1) * (1 - private_percent / 100.0));
	for (int i = 0; i < n; i++)
		again += ask(i, WORK_UPM_AGAIN).wall / n;
	for (int i = 0; i < n; i++)
		ask(i, WORK_CHECK);
	end(n);
	printf("  \"upm.first_ms\": %.2f,\n  \"upm.first_gib_s\": %.3f,\n", first * 1e3, gib / first);
	printf("  \"upm.merging_ms\": %.2f,\n  \"upm.merging_gib_s\": %.3f,\n", merging * 1e3, gib / merging);
	printf("  \"upm.again_ms\": %.2f,\n", again * 1e3);
	printf("  \"upm.all_ms\": %.2f,\n  \"upm.cpu_ms\": %.2f,\n", (first + merging * (n - 1)) * 1e3, cpu * 1e3);

	start(n, pages, private_percent);
	t0 = now(CLOCK_MONOTONIC);
	for (int i = 0; i < n; i++)
		tell(i, WORK_UPM);
	for (int i = 0; i < n; i++)
		cpu_at_once += hear(i).cpu;
	at_once = now(CLOCK_MONOTONIC) - t0;
	for (int i = 0; i < n; i++)
		ask(i, WORK_CHECK);
	end(n);
	printf("  \"upm.at_once_ms\": %.2f,\n  \"upm.at_once_cpu_ms\": %.2f,\n", at_once * 1e3, cpu_at_once * 1e3);

	put("/sys/kernel/mm/upm/timing", "1");
	start(2, pages, private_percent);
	steps_ns(ns0);
	ask(0, WORK_UPM);
	steps_ns(ns1);
	ask(1, WORK_UPM);
	steps_ns(ns2);
	end(2);
	put("/sys/kernel/mm/upm/timing", "0");
	shares("first", ns0, ns1);
	shares("merging", ns1, ns2);

	if (ksm) {  // as fast as it goes: no sleep, everything in one batch, no page skipped
		start(n, pages, private_percent);
		put("/sys/kernel/mm/ksm/pages_to_scan", "1000000");
		put("/sys/kernel/mm/ksm/sleep_millisecs", "0");
		put("/sys/kernel/mm/ksm/smart_scan", "0");
		for (int i = 0; i < n; i++)
			ask(i, WORK_KSM);
		before = used_mib();
		want = (long)(pages * (1 - private_percent / 100.0)) * (n - 1) * 995 / 1000;
		t0 = now(CLOCK_MONOTONIC), cpu0 = ksmd_cpu();
		put("/sys/kernel/mm/ksm/run", "1");
		while (number("/sys/kernel/mm/ksm/%s", "pages_sharing") < want && now(CLOCK_MONOTONIC) - t0 < 300)
			usleep(2000);
		t0 = now(CLOCK_MONOTONIC) - t0, cpu0 = ksmd_cpu() - cpu0;
		printf("  \"ksm.all_ms\": %.2f,\n  \"ksm.cpu_ms\": %.0f,\n  \"ksm.saved_mib\": %.1f,\n", t0 * 1e3, cpu0 * 1e3,
		       before - used_mib());
		printf("  \"ksm.time_of_upm\": %.2f,\n  \"upm.cpu_of_ksm\": %.3f,\n", t0 / (first + merging * (n - 1)),
		       cpu / cpu0);
		put("/sys/kernel/mm/ksm/run", "0");
		for (int i = 0; i < n; i++)
			ask(i, WORK_CHECK);
		put("/sys/kernel/mm/ksm/run", "2");
		put("/sys/kernel/mm/ksm/run", "0");
		end(n);
	}
	printf("  \"pages_shared_left\": %ld\n}\n", number("/sys/kernel/mm/ksm/%s", "pages_shared"));
	return 0;
}
