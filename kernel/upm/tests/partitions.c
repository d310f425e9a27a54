// An instance in a HotMem partition that advises its memory, and checks in which partition the stable pages are.
//
// `partitions NODE` takes the partition of NODE, advises 8 MiB that are the same in every instance, and fails unless
// all of its pages are then in the shared partition. Then it compares its memory with its writes, until killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/hotmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MADV_UPM 0x5550

enum { PAGE = 4096, PAGES = 2048, SHARED = 1 };

static uint64_t word(int page, int i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u ^ i;
}

static int node_of(char *page)
{
	void *pages[1] = {page};
	int status = -1;

	return syscall(SYS_move_pages, 0, 1ul, pages, NULL, &status, 0) ? -errno : status;
}

int main(int argc, char **argv)
{
	struct hotmem_assign request = {.node = argc == 2 ? atoi(argv[1]) : -1};
	int fd = open("/dev/hotmem", O_RDWR | O_CLOEXEC);
	char *memory;

	if (fd < 0 || ioctl(fd, HOTMEM_ASSIGN, &request))
		return printf("HOTMEM_ASSIGN: %s\n", strerror(errno)), 1;
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int page = 0; page < PAGES; page++)
		for (int i = 0; i < PAGE / 8; i++)
			((uint64_t *)(memory + page * PAGE))[i] = word(page, i);
	if (node_of(memory) != request.node)
		return printf("before advice: a page on node %d, not %d\n", node_of(memory), request.node), 1;
	if (madvise(memory, PAGES * PAGE, MADV_UPM))
		return printf("MADV_UPM: %s\n", strerror(errno)), 1;
	for (int page = 0; page < PAGES; page++)
		if (node_of(memory + page * PAGE) != SHARED)
			return printf("after advice: page %d on node %d, not %d\n", page, node_of(memory + page * PAGE), SHARED), 1;
	memory[0] ^= 1; // a private copy: in its partition again
	if (node_of(memory) != request.node)
		return printf("after a write: a page on node %d, not %d\n", node_of(memory), request.node), 1;
	memory[0] ^= 1;
	for (int rounds = 0;; rounds++) {
		for (int page = 0; page < PAGES; page++)
			for (int i = 0; i < PAGE / 8; i++)
				if (((uint64_t *)(memory + page * PAGE))[i] != word(page, i))
					return printf("page %d has changed\n", page), 1;
		if (rounds == 0) {
			printf("ready\n");
			fflush(stdout);
		}
		usleep(100000);
	}
}
