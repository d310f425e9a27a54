// pagecheck NODES INSTANCE=NODE...: checks every page of the guest's memory: whether each partition holds its
// own instance's pages only, and each instance's anonymous pages lie in its own partition only.
//
// NODES is the range of nodes that are partitions, as FIRST-LAST. The kernel says for each page what it is
// (/proc/kpageflags) and which control group it is charged to (/proc/kpagecgroup). Prints one line and exits with 0, or
// one line for each of the first wrong pages and exits with 1.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AT_ONCE = 1 << 15, MOST = 256, SUSPECTS = 1 << 16, SHOWN = 10 };
#define BIT(n) (1ull << (n))
// include/uapi/linux/kernel-page-flags.h
#define LRU BIT(5)
#define MMAP BIT(11)
#define ANON BIT(12)
#define SWAPBACKED BIT(14)
#define NOPAGE BIT(20)

static struct {
    const char *name;
    int node;
    uint64_t group;
} instances[MOST];
static struct {
    uint64_t frame;
    int node;
} suspects[SUSPECTS];
static int instance_count, suspect_count, first_node, last_node;
static uint64_t kinds[AT_ONCE], groups[AT_ONCE], own_pages, wrong_pages;

static const char *kind_name(uint64_t kind) {
    return kind & ANON ? "anonymous" : kind & SWAPBACKED ? "tmpfs" : "page cache";
}

static void report(uint64_t frame, int node, int owner, uint64_t kind, uint64_t group) {
    if (wrong_pages++ < SHOWN)
        printf("page frame %llu on node %d belongs to %s (group %llu), is %s, flags %llx\n", (unsigned long long)frame, node,
               owner < 0 ? "no instance that runs" : instances[owner].name, (unsigned long long)group, kind_name(kind),
               (unsigned long long)kind);
}

// The owner of the page, -1 for none; or -2 if it lies where it may.
static int stray(int node, uint64_t kind, uint64_t group) {
    if (kind & NOPAGE || !(kind & (ANON | LRU | MMAP)))
        return -2;
    int owner = -1;
    for (int i = 0; i < instance_count; i++)
        if (instances[i].group == group)
            owner = i;
    int in_partition = node >= first_node && node <= last_node;
    int wrong = in_partition ? owner < 0 || instances[owner].node != node : owner >= 0 && instances[owner].node > 0 && kind & ANON;
    own_pages += !wrong && owner >= 0;
    return wrong ? owner : -2;
}

// A page's flags and owner are read one after the other, and it may be freed in between; so may the memory of an
// instance that has just ended. What is wrong stays wrong.
static void look_again(int kinds_file, int groups_file) {
    if (suspect_count > 0)
        sleep(2);
    for (int i = 0; i < suspect_count; i++) {
        uint64_t kind, group, frame = suspects[i].frame;
        if (pread(groups_file, &group, 8, frame * 8) != 8 || pread(kinds_file, &kind, 8, frame * 8) != 8)
            continue;
        int owner = stray(suspects[i].node, kind, group);
        if (owner != -2)
            report(frame, suspects[i].node, owner, kind, group);
    }
}

static void look_at_block(int node, uint64_t first, uint64_t count, int kinds_file, int groups_file) {
    for (uint64_t at = first; at < first + count; at += AT_ONCE) {
        ssize_t bytes = AT_ONCE * 8;
        if (pread(kinds_file, kinds, bytes, at * 8) != bytes || pread(groups_file, groups, bytes, at * 8) != bytes)
            return; // taken offline in this moment
        for (int i = 0; i < AT_ONCE; i++)
            if (stray(node, kinds[i], groups[i]) != -2 && suspect_count < SUSPECTS) {
                suspects[suspect_count].frame = at + i;
                suspects[suspect_count++].node = node;
            }
    }
}

static uint64_t block_bytes(void) {
    char text[32] = "";
    int file = open("/sys/devices/system/memory/block_size_bytes", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        exit(2);
    close(file);
    return strtoull(text, 0, 16);
}

int main(int count, char **words) {
    if (count < 2 || count - 2 > MOST || sscanf(words[1], "%d-%d", &first_node, &last_node) != 2) {
        fprintf(stderr, "usage: pagecheck FIRST-LAST INSTANCE=NODE...\n");
        return 2;
    }
    for (int i = 2; i < count; i++) {
        char *equals = strchr(words[i], '='), path[512];
        struct stat about;
        if (!equals)
            return 2;
        *equals = 0;
        snprintf(path, sizeof path, "/sys/fs/cgroup/instances/%s", words[i]);
        if (stat(path, &about) == 0) { // an instance that has just ended owns nothing
            instances[instance_count].name = words[i];
            instances[instance_count].node = atoi(equals + 1);
            instances[instance_count++].group = about.st_ino;
        }
    }
    int kinds_file = open("/proc/kpageflags", O_RDONLY), groups_file = open("/proc/kpagecgroup", O_RDONLY);
    if (kinds_file < 0 || groups_file < 0) {
        perror("pagecheck: /proc/kpageflags");
        return 2;
    }
    uint64_t block_pages = block_bytes() / 4096;
    for (int node = 0; node <= last_node; node++) {
        char folder[64];
        snprintf(folder, sizeof folder, "/sys/devices/system/node/node%d", node);
        DIR *list = opendir(folder);
        struct dirent *entry;
        unsigned long long block;
        while (list && (entry = readdir(list)))
            if (sscanf(entry->d_name, "memory%llu", &block) == 1)
                look_at_block(node, block * block_pages, block_pages, kinds_file, groups_file);
        if (list)
            closedir(list);
    }
    look_again(kinds_file, groups_file);
    if (wrong_pages == 0)
        printf("own %llu pages, wrong 0\n", (unsigned long long)own_pages);
    else
        printf("own %llu pages, WRONG %llu\n", (unsigned long long)own_pages, (unsigned long long)wrong_pages);
    return wrong_pages > 0;
}
