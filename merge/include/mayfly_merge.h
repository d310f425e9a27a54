/* Mayfly's page merging (UPM): one call shares a region's pages, copy-on-write, with every identical page that a program
 * of the same trust domain has advised before. docs/merge.md explains it. Link with -lmayfly_merge, or load the library and
 * look the functions up. Every function may be called from any thread, and after fork, but not from a signal handler. */
#ifndef MAYFLY_MERGE_H
#define MAYFLY_MERGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of mayfly_advise: what the caller promises about writers during the call. With none, any thread may write to the
 * region at any time, system calls such as read(2) included, and no write is lost. Pages that the kernel has pinned for a
 * device (O_DIRECT, io_uring's fixed buffers, a GPU's, RDMA, AF_XDP) stay private. Where it does not tell which those are
 * (before Linux 6.8, and in read-only or executable memory), ENOTSUP names the descriptor that may have pinned some. */
enum {
    /* Other threads write by plain stores only: no system call writes into the region during the call. The userfaultfd
     * that needs no permission (UFFD_USER_MODE_ONLY) suffices. */
    MAYFLY_ADVISE_NO_SYSCALLS = 1,
    /* No thread writes into the region during the call, and no device during or after it. Needs no userfaultfd, and is
     * the only way for writable private mappings of files. */
    MAYFLY_ADVISE_QUIET = 2
};

/* Merges the pages of [address, address + length) and returns when they are shared (UPM IV-D: synchronous). Both must be
 * multiples of the page size. Pages that were advised before and have not changed cost next to nothing; those that have
 * changed are merged again (V-B). Returns 0, or -1 with errno:
 *   EINVAL      unaligned, or an unknown flag
 *   ENOMEM      part of the range is not mapped, or the process has no room for more mappings
 *   ENOTSUP     nothing but stack, device memory, a shared mapping, reserved huge pages, locked, sealed or unreadable
 *               memory, MAP_DROPPABLE, MADV_WIPEONFORK, MADV_DONTFORK, MADV_DONTDUMP, protection keys, memory to which
 *               a device may write (see above)
 *   ECONNREFUSED, ECONNRESET, ETIMEDOUT   no page store, or its connection closed: start one with `mayfly share`
 *   EPERM       userfaultfd is not permitted: mayfly_merge_error() names the remedy
 *   ENOSPC      the store is full: pages that it has are shared, the rest stay private
 *   EFBIG, EMFILE   ulimit -f or -n is too low; EMFILE also if the store may open no more files, or connections
 * The contents of the region are right in every case.
 *
 * Pages at which a read would raise a signal, guards (MADV_GUARD_INSTALL) and poisoned ones, are left out. Pages that
 * other processes have as well, since a fork, stay as they are until they are this process's alone: call again then. No
 * thread may unmap memory of the region or install guards in it during the call.
 *
 * Afterwards the region is a private mapping of the store's pages. Anonymous memory keeps its semantics: the library
 * interposes the C library's madvise, process_madvise, mremap, realloc and syscall in every loaded object (ENOTSUP, and
 * the allocator's name, where it cannot). Memory of runtimes that make these system calls by themselves, such as Go's, must not be advised. Call
 * mayfly_unadvise before mlock, which would copy every page. A fork waits for calls of other threads to end; the child
 * shares what its parent shared. */
int mayfly_advise(void *address, size_t length, unsigned flags);

/* The same for many regions by one call, which costs less than a call for each: an object's arrays, a model's
 * layers. All are checked before any is merged; if one cannot be merged, none is. On another failure those before it are
 * shared. */
int mayfly_advise_all(const struct iovec *regions, size_t count, unsigned flags);

/* Gives every page of the range a private, anonymous copy again; no write is lost. Where the only userfaultfd that is
 * permitted is the one for user mode, a system call that writes to the range meanwhile fails with EFAULT. Returns 0, or
 * -1 with errno (EINVAL, ENOMEM, EPERM). */
int mayfly_unadvise(void *address, size_t length);

/* For a process that waits to be taken as a snapshot (docs/worker.md): its copies have this memory as private mappings of
 * the snapshot's file. This makes it keep the semantics of anonymous memory there, as memory that is shared. Returns 0,
 * or -1 with errno (EINVAL, ENOMEM, ENOTSUP). */
int mayfly_keep_anonymous(void *address, size_t length);

/* The same as mayfly_advise on a thread of the library's own (UPM VII). Returns a ticket > 0, or -1 with errno. The range
 * must stay mapped until the ticket is done. mayfly_advise_wait returns the result. */
int64_t mayfly_advise_begin(void *address, size_t length, unsigned flags);

/* Waits up to timeout_ms for a ticket (0: does not wait; negative: as long as it takes). Returns 0 once the call has
 * succeeded, else -1 with errno: ETIMEDOUT not done yet, EINVAL no such ticket (each result is returned once), ECANCELED
 * the call began before a fork and this is the child, or an error of mayfly_advise. */
int mayfly_advise_wait(int64_t ticket, int timeout_ms);

/* How pages are merged. */
enum mayfly_merge_path {
    MAYFLY_PATH_NONE = 0,  /* nothing has been advised yet */
    MAYFLY_PATH_KERNEL = 1, /* madvise, on a kernel with UPM */
    MAYFLY_PATH_ENGINE = 2  /* this library and the page store of `mayfly share` */
};

/* What this process's calls have done since it started, or since fork. Pages are of 4 KiB. */
struct mayfly_merge_stats {
    uint32_t size;             /* of this structure in the library */
    uint32_t path;             /* enum mayfly_merge_path, of the last call */
    uint64_t calls;            /* of mayfly_advise, finished */
    uint64_t pages;            /* advised */
    uint64_t unchanged_pages;  /* shared already, by the store or a fork: nothing to do (V-B) */
    uint64_t merged_pages;     /* now share a page advised before, by any program, or an earlier page of the call */
    uint64_t inserted_pages;   /* first of their contents: uploaded to the store, for the next programs that have them */
    uint64_t private_pages;    /* first of their contents, between shared ones: stay private, and the store is informed */
    uint64_t zero_pages;       /* all zero, or never touched: share the kernel's zero page */
    uint64_t busy_pages;       /* written during the call, or pinned for a device: left private */
    uint64_t refused_pages;    /* left private: the store is full, or a mapping would save too little */
    uint64_t mappings;         /* made by the library, as counted when they were made */
    uint64_t unadvised_pages;  /* made private by mayfly_unadvise */
    /* Where the time went (UPM Table I), in ns of wall time. */
    uint64_t total_ns;
    uint64_t hash_ns;          /* calculate hash */
    uint64_t search_ns;        /* search in the store's index */
    uint64_t known_ns;         /* search among pages advised before (the reversed table) */
    uint64_t insert_ns;        /* copy into the store, wait for it to accept the pages */
    uint64_t map_ns;           /* map the store's pages, fill the page table */
    uint64_t freeze_ns;        /* hold writers off, and let them continue */
    uint64_t compare_ns;       /* byte by byte */
    uint64_t remap_ns;         /* put the shared pages in place, free the old ones */
};

/* Writes at most `size` bytes of the statistics (sizeof *stats). Returns 0, or -1 with errno EINVAL. */
int mayfly_merge_stats(struct mayfly_merge_stats *stats, size_t size);

/* One line about the last call of this thread that failed; "" if none did. Valid until the thread's next call. */
const char *mayfly_merge_error(void);

/* How the next call will merge: "kernel", "engine", or "none: " and why not. Valid until the thread's next call. */
const char *mayfly_merge_path(void);

/* A loaded file whose code calls madvise, process_madvise or mremap by an instruction of its own, past the C library, as
 * Go's runtime and wasmtime do; "" if there is none. Where the library merges ("engine"), memory that it manages must not
 * be advised. Valid until the thread's next call of this function or of mayfly_merge_path. */
const char *mayfly_merge_bypass(void);

#ifdef __cplusplus
}
#endif
#endif
