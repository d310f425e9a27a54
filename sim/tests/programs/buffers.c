/* So many turns as the word says. In each the kernel allocates 16 pages for a pipe and frees them, and the program maps 64
 * pages, touches each and unmaps them. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PIPE = 16 * PAGE, MAPPED = 64 * PAGE };

int main(int count, char **words) {
    static char buffer[PIPE];
    int turns = count > 1 ? atoi(words[1]) : 1;
    for (int turn = 0; turn < turns; turn++) {
        int ends[2];
        if (pipe(ends) || write(ends[1], buffer, PIPE) != PIPE || read(ends[0], buffer, PIPE) != PIPE) return 1;
        close(ends[0]), close(ends[1]);
        char *mapped = mmap(0, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return 1;
        for (int at = 0; at < MAPPED; at += PAGE) mapped[at] = 1;
        if (munmap(mapped, MAPPED)) return 1;
    }
    return 0;
}
