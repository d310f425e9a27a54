/* The journal of operations; see journal.h. It is a shared mapping, so that it is complete however the program ends. */
#define _GNU_SOURCE
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct record {
    uint8_t operation, lane;
    uint16_t size;
    uint32_t outcome;
    uint64_t address;
};

static struct journal {
    uint64_t magic;
    uint64_t records, flags, batch;
    struct record record[];
} *journal;

static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;
static const size_t JOURNAL_BYTES = (size_t)1 << 32; /* of a sparse file */

static void refuse(const char *path) {
    dprintf(2, "libmemento: cannot write the journal %s: %s\n", path, strerror(errno));
    _exit(127);
}

/* %p is the process, so that programs that start others have a journal each. */
static void expand(const char *pattern, char *path, size_t size) {
    const char *percent = strstr(pattern, "%p");
    if (percent) snprintf(path, size, "%.*s%d%s", (int)(percent - pattern), pattern, getpid(), percent + 2);
    else snprintf(path, size, "%s", pattern);
}

void journal_open(const char *pattern, int flags, int batch) {
    char path[4096];
    expand(pattern, path, sizeof path);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, JOURNAL_BYTES) != 0) refuse(path);
    void *mapped = mmap(NULL, JOURNAL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (mapped == MAP_FAILED) refuse(path);
    close(file);
    journal = mapped;
    memcpy(&journal->magic, "memento1", 8);
    journal->flags = flags;
    journal->batch = batch;
}

void journal_begin(void) {
    if (journal) pthread_mutex_lock(&journal_lock);
}

void journal_end(int operation, unsigned lane, unsigned size, unsigned outcome, const void *address) {
    if (!journal) return;
    if ((journal->records + 3) * sizeof(struct record) > JOURNAL_BYTES) {
        dprintf(2, "libmemento: the journal is full after %llu operations\n", (unsigned long long)journal->records);
        _exit(127);
    }
    journal->record[journal->records++] = (struct record){operation, lane, size, outcome, (uint64_t)address};
    pthread_mutex_unlock(&journal_lock);
}

void journal_skip(void) {
    if (journal) pthread_mutex_unlock(&journal_lock);
}

void journal_close_in_child(void) {
    journal_skip();
    journal = NULL;
}
