/* A program that forbids itself to open files, as xz does before it decompresses, and then allocates. Exits with 77
 * where there is no Landlock. */
#define _GNU_SOURCE
#include <linux/landlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MIB = 1 << 20, SECONDS = 4 };

int main(void) {
    struct landlock_ruleset_attr all = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE};
    int rules = syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0) return 77;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_landlock_restrict_self, rules, 0)) return 1;
    char *block = malloc(8 * MIB);
    if (!block) return 1;
    memset(block, 1, 8 * MIB);
    sleep(SECONDS); /* two scans */
    puts("done");
    return 0;
}
