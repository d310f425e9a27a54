/* MEMENTO_JOURNAL=FILE: every operation, in order, for memento-replay. A record is 16 bytes: operation, lane, size and
 * outcome; address. The file starts with their number. */
#ifndef MEMENTO_JOURNAL_H
#define MEMENTO_JOURNAL_H

#include <stdint.h>

enum { JOURNAL_ALLOC = 1, JOURNAL_FREE = 2, JOURNAL_BATCH = 3 };

/* `flags`: 1 if arenas are loaded eagerly, 2 if they are whole pages. */
void journal_open(const char *path, int flags, int batch);
/* An operation and its record are one step: these take and release the journal's lock, if there is a journal. */
void journal_begin(void);
void journal_end(int operation, unsigned lane, unsigned size, unsigned outcome, const void *address);
/* Releases the lock without a record. In a fork's child, which has no journal of its own, for good. */
void journal_skip(void);
void journal_close_in_child(void);

#endif
