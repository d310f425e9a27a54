// A client of the page store that reads commands from stdin, one a line, and answers each with one line, so that the
// runner controls the order of several clients:
//   map BLOCK PAGES   a new block of anonymous memory    fill BLOCK CONTENT   known contents, page by page
//   advise BLOCK FLAGS             "ok", or "errno line"              begin BLOCK FLAGS    "ok" (asynchronous form)
//   advise_all BLOCK FLAGS         the same in three parts
//   unadvise BLOCK                                                    check BLOCK          "ok" if every byte is right
//   touch BLOCK PAGE VALUE         writes one byte                    unmap BLOCK
//   steps begin|end                where kill_at counts               stats                "name=value ..."
//   where BLOCK                    its address and length             mappings             how many the process has
//   files                          how many are open                  fork                 the child answers from now on
//   threads                        starts a second thread             sleep MS, path, exit
// variants: started by the runner
#include "merge_test.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { BLOCKS = 16 };

static struct block {
    unsigned char *base;
    size_t pages;
    uint64_t content;
    int touched_page, touched_value;
} blocks[BLOCKS];

static void *idle(void *argument) {
    (void)argument;
    for (;;) pause();
    return NULL;
}

// Page p of content c is the same as page p + 1 of content c - 1000: blocks can overlap in part.
static uint64_t page_content(uint64_t content, size_t page) { return content * 1000 + page; }

static void answer(int result) {
    if (result == 0)
        puts("ok");
    else
        printf("%d %s\n", errno, mayfly_merge_error());
}

static void check_block(struct block *b) {
    for (size_t p = 0; p < b->pages; p++) {
        unsigned char page[PAGE];
        if (b->content)
            fill(page, PAGE, page_content(b->content, p));
        else
            memset(page, 0, PAGE);
        if (b->touched_value >= 0 && (size_t)b->touched_page == p) page[100] = (unsigned char)b->touched_value;
        for (size_t i = 0; i < PAGE; i++)
            if (page[i] != b->base[p * PAGE + i]) {
                printf("page %zu byte %zu is %#x, not %#x\n", p, i, b->base[p * PAGE + i], page[i]);
                return;
            }
    }
    puts("ok");
}

int main(void) {
    char line[256], word[64];
    setlinebuf(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long n = 0, first = 0, second = 0;
        if (sscanf(line, "%63s %llu %llu %llu", word, &n, &first, &second) < 1) continue;
        struct block *b = &blocks[n % BLOCKS];
        size_t size = b->pages * PAGE;
        if (!strcmp(word, "map")) {
            b->pages = first;
            b->content = 0;
            b->touched_value = -1;
            b->base = mmap(NULL, b->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(b->base != MAP_FAILED, "%m");
            puts("ok");
        } else if (!strcmp(word, "fill")) {
            b->content = first;
            b->touched_value = -1;
            for (size_t p = 0; p < b->pages; p++) fill(b->base + p * PAGE, PAGE, page_content(first, p));
            puts("ok");
        } else if (!strcmp(word, "advise")) {
            answer(mayfly_advise(b->base, size, (unsigned)first));
        } else if (!strcmp(word, "advise_all")) {
            // In three parts, out of order.
            size_t third = b->pages / 3 * PAGE;
            struct iovec parts[] = {{b->base + third, third}, {b->base, third}, {b->base + 2 * third, size - 2 * third}};
            answer(mayfly_advise_all(parts, 3, (unsigned)first));
        } else if (!strcmp(word, "begin")) {
            int64_t ticket = mayfly_advise_begin(b->base, size, (unsigned)first);
            answer(ticket > 0 ? mayfly_advise_wait(ticket, -1) : -1);
        } else if (!strcmp(word, "unadvise")) {
            answer(mayfly_unadvise(b->base, size));
        } else if (!strcmp(word, "check")) {
            check_block(b);
        } else if (!strcmp(word, "touch")) {
            b->touched_page = (int)first;
            b->touched_value = (int)second & 0xff;
            b->base[first * PAGE + 100] = (unsigned char)second;
            puts("ok");
        } else if (!strcmp(word, "unmap")) {
            munmap(b->base, size);
            b->pages = 0;
            puts("ok");
        } else if (!strcmp(word, "steps")) {
            prctl(strstr(line, "begin") ? STEPS_BEGIN : STEPS_END, 0, 0, 0, 0);
            puts("ok");
        } else if (!strcmp(word, "stats")) {
            struct mayfly_merge_stats s;
            CHECK(!mayfly_merge_stats(&s, sizeof s), "%m");
            printf("size=%u path=%u calls=%llu pages=%llu unchanged=%llu merged=%llu inserted=%llu private=%llu zero=%llu "
                   "busy=%llu refused=%llu mappings=%llu unadvised=%llu\n", s.size, s.path, (unsigned long long)s.calls,
                   (unsigned long long)s.pages, (unsigned long long)s.unchanged_pages, (unsigned long long)s.merged_pages,
                   (unsigned long long)s.inserted_pages, (unsigned long long)s.private_pages,
                   (unsigned long long)s.zero_pages, (unsigned long long)s.busy_pages,
                   (unsigned long long)s.refused_pages, (unsigned long long)s.mappings,
                   (unsigned long long)s.unadvised_pages);
        } else if (!strcmp(word, "where")) {
            printf("%llu %llu\n", (unsigned long long)(uintptr_t)b->base, (unsigned long long)size);
        } else if (!strcmp(word, "mappings")) {
            int lines = 0;
            FILE *maps = fopen("/proc/self/maps", "r");
            for (int c; (c = fgetc(maps)) != EOF;) lines += c == '\n';
            fclose(maps);
            printf("%d\n", lines);
        } else if (!strcmp(word, "files")) {
            printf("%d\n", open_files());
        } else if (!strcmp(word, "fork")) {
            fflush(stdout);
            pid_t child = fork();
            if (child) {
                int status;
                waitpid(child, &status, 0);
                _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
            }
            printf("%d\n", getpid());
        } else if (!strcmp(word, "threads")) {
            pthread_t thread;
            CHECK(!pthread_create(&thread, NULL, idle, NULL), "%m");
            puts("ok");
        } else if (!strcmp(word, "sleep")) {
            usleep((useconds_t)n * 1000);
            puts("ok");
        } else if (!strcmp(word, "path")) {
            puts(mayfly_merge_path());
        } else if (!strcmp(word, "exit")) {
            break;
        } else {
            printf("no command %s\n", word);
        }
    }
    return 0;
}
