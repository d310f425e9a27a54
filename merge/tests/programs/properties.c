// What merged memory keeps of the properties of anonymous memory (docs/merge.md has the table). `properties CASE` prints
// `refused: LINE`, `lost`, `kept`, or `skip: REASON` where the kernel lacks the property; contents are right in any case.
// variants: started by the runner
#include "merge_test.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <linux/prctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { PAGES = 64, BYTES = PAGES * PAGE, MSEAL = 462 };

static unsigned char *at;

static void skip(const char *what) {
    printf("skip: %s: %s\n", what, strerror(errno));
    exit(0);
}

// Whether the line of /proc/self/smaps about `at` that begins with `field` has the word.
static bool has(const char *field, const char *word) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512], want[64];
    bool here = false, found = false;
    snprintf(want, sizeof want, " %s", word);
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) here = start <= (uintptr_t)at && (uintptr_t)at < end;
        if (here && (!strncmp(line, field, strlen(field)) || !*field)) found |= strstr(line, want) != NULL;
    }
    fclose(file);
    return found;
}

static const char *result(void) {
    static char text[600];
    if (!mayfly_advise(at, BYTES, 0)) return NULL;
    snprintf(text, sizeof text, "refused: %d %s", errno, mayfly_merge_error());
    return text;
}

static void by_advice(int advice, const char *flag, bool is_hint) {
    if (madvise(at, BYTES, advice)) skip(flag);
    CHECK(has("VmFlags:", flag), "the kernel does not show %s", flag);
    const char *said = result();
    if (is_hint) CHECK(!said, "%s", said);
    puts(said ? said : has("VmFlags:", flag) ? "kept" : "lost");
}

// A property that comes after the first call is checked at the next.
static void later(int advice) {
    CHECK(!mayfly_advise(at, BYTES, 0), "%m: %s", mayfly_merge_error());
    CHECK(!madvise(at, BYTES, advice), "%m");
    at[5 * PAGE] ^= 1;
    const char *said = result();
    at[5 * PAGE] ^= 1;
    puts(said ? said : "lost");
}

static void key(void) {
    int number = syscall(SYS_pkey_alloc, 0, 0);
    if (number < 0) skip("protection keys");
    CHECK(!syscall(SYS_pkey_mprotect, at, BYTES, PROT_READ | PROT_WRITE, number), "%m");
    puts(result() ?: "lost");
}

static void protected(void) {
    CHECK(!mprotect(at, BYTES / 2, PROT_READ), "%m");
    const char *said = result();
    CHECK(!said, "%s", said);
    CHECK(!mprotect(at + BYTES / 4, BYTES / 4, PROT_READ | PROT_WRITE), "%m");
    CHECK(!mprotect(at + BYTES / 2, BYTES / 4, PROT_READ), "%m");
    CHECK(!mayfly_advise(at, BYTES, 0), "%s", mayfly_merge_error());
    bool writable[4];
    for (int i = 0; i < 4; i++) {
        int file = open("/dev/zero", O_RDONLY);
        unsigned char *page = at + i * BYTES / 4 + PAGE, old = *page;
        writable[i] = read(file, page, 1) == 1;  // EFAULT, and no signal
        if (writable[i]) *page = old;
        close(file);
    }
    puts(!writable[0] && writable[1] && !writable[2] && writable[3] ? "kept" : "lost");
}

static void watched(void) {
    int file = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    if (file < 0 || ioctl(file, UFFDIO_API, &api)) skip("userfaultfd");
    struct uffdio_register all = {.range = {(uintptr_t)at, BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(!ioctl(file, UFFDIO_REGISTER, &all), "%m");
    puts(result() ?: "lost");
}

static void policy(void) {
    unsigned long nodes = 1;
    int mode = -1;
    if (syscall(SYS_mbind, at, BYTES, MPOL_BIND, &nodes, 8, 0)) skip("NUMA policies");
    const char *said = result();
    CHECK(!said, "%s", said);
    CHECK(!syscall(SYS_get_mempolicy, &mode, NULL, 0, at, MPOL_F_ADDR), "%m");
    puts(mode == MPOL_BIND ? "kept" : "lost");
}

static void named(void) {
    if (prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, BYTES, "a-name")) skip("names of anonymous memory");
    CHECK(has("", "[anon:a-name]"), "the kernel does not show the name");
    const char *said = result();
    CHECK(!said, "%s", said);
    puts(has("", "[anon:a-name]") ? "kept" : "lost");
}

int main(int count, char **words) {
    CHECK(count > 1, "usage: properties CASE");
    const char *name = words[1];
    at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%m");
    fill(at, BYTES, 1);
    if (!strcmp(name, "wipe on fork")) by_advice(MADV_WIPEONFORK, "wf", false);
    else if (!strcmp(name, "not forked")) by_advice(MADV_DONTFORK, "dc", false);
    else if (!strcmp(name, "not dumped")) by_advice(MADV_DONTDUMP, "dd", false);
    else if (!strcmp(name, "not forked later")) later(MADV_DONTFORK);
    else if (!strcmp(name, "not dumped later")) later(MADV_DONTDUMP);
    else if (!strcmp(name, "huge pages")) by_advice(MADV_HUGEPAGE, "hg", true);
    else if (!strcmp(name, "no huge pages")) by_advice(MADV_NOHUGEPAGE, "nh", true);
    else if (!strcmp(name, "mergeable")) by_advice(MADV_MERGEABLE, "mg", true);
    else if (!strcmp(name, "protection key")) key();
    else if (!strcmp(name, "protection")) protected();
    else if (!strcmp(name, "userfaultfd")) watched();
    else if (!strcmp(name, "policy")) policy();
    else if (!strcmp(name, "name")) named();
    else if (!strcmp(name, "locked")) {
        if (mlock(at, BYTES)) skip("mlock");
        puts(result() ?: "lost");
    } else if (!strcmp(name, "sealed")) {
        if (syscall(MSEAL, at, BYTES, 0)) skip("mseal (Linux 6.10)");
        puts(result() ?: "lost");
    } else
        CHECK(0, "no case %s", name);
    expect(at, BYTES, 1, name);
    return 0;
}
