"""Finds libmayfly_merge.so and calls it (merge/include/mayfly_merge.h); every failure becomes a
MergeError."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

NAME = "libmayfly_merge.so"
QUIET = 2  # MAYFLY_ADVISE_QUIET


class MergeError(OSError):
    """Memory could not be merged; the text has the reason, `errno` is the library's. The contents of the
    memory are right in every case."""


class Range(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("start", c_void_p), ("size_bytes", c_size_t)]


class Stats(ctypes.Structure):
    """struct mayfly_merge_stats."""

    _fields_ = [
        ("size", c_uint32),
        ("path", c_uint32),
        *(
            (name, c_uint64)
            for name in (
                "calls",
                "pages",
                "unchanged_pages",
                "merged_pages",
                "inserted_pages",
                "private_pages",
                "zero_pages",
                "busy_pages",
                "refused_pages",
                "mappings",
                "unadvised_pages",
                "total_ns",
                "hash_ns",
                "search_ns",
                "known_ns",
                "insert_ns",
                "map_ns",
                "freeze_ns",
                "compare_ns",
                "remap_ns",
            )
        ),
    ]


def candidates() -> list[str]:
    """Possible paths of the library, in order of preference."""
    package = Path(__file__).resolve().parent
    return [
        str(package / NAME),
        str(package.parents[1] / "target" / "release" / NAME),
        NAME,  # wherever the system's loader looks
    ]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once. MAYFLY_MERGE_LIBRARY names another file."""
    return load(ctypes.CDLL)


def load_early() -> None:
    """Loads the library in processes of root. Their children may change the user, and cannot open their page
    map afterwards: the library opens it before."""
    if os.geteuid() == 0:
        with contextlib.suppress(MergeError):
            library()


@functools.cache
def alone() -> ctypes.PyDLL:
    """The same library; no other Python thread runs during its calls, so none unmaps memory meanwhile."""
    return load(ctypes.PyDLL)


def load(kind: type) -> ctypes.CDLL:
    """The library by ctypes.CDLL or PyDLL. Raises MergeError (ENOENT), which lists the paths tried, where
    it is not found."""
    named = os.environ.get("MAYFLY_MERGE_LIBRARY")
    why = ""
    for path in [named] if named else candidates():
        if "/" in path and not os.path.exists(path):
            why = f"{path}: does not exist"
            continue
        try:
            return declared(kind(path, use_errno=True))
        except (OSError, AttributeError) as error:
            why = f"{path}: {error}"
    if named:
        raise MergeError(errno.ENOENT, f"MAYFLY_MERGE_LIBRARY: {why}")
    raise MergeError(
        errno.ENOENT,
        f"{NAME} not found beside the package, in target/release or among the system's libraries: "
        "build it with 'cargo build --release', or name it in MAYFLY_MERGE_LIBRARY",
    )


def declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Declares the functions' types. Raises AttributeError when it is some other library."""
    for name, result, *taken in (
        ("mayfly_advise", c_int, c_void_p, c_size_t, c_uint),
        ("mayfly_advise_all", c_int, ctypes.POINTER(Range), c_size_t, c_uint),
        ("mayfly_unadvise", c_int, c_void_p, c_size_t),
        ("mayfly_advise_begin", c_int64, c_void_p, c_size_t, c_uint),
        ("mayfly_advise_wait", c_int, c_int64, c_int),
        ("mayfly_merge_stats", c_int, ctypes.POINTER(Stats), c_size_t),
        ("mayfly_merge_error", c_char_p),
        ("mayfly_merge_path", c_char_p),
        ("mayfly_merge_bypass", c_char_p),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, taken
    return loaded


def call(name: str, *taken: Any, by: Callable[[], ctypes.CDLL] = library) -> int:
    """Calls a function that returns -1 and sets errno on failure. Other Python threads run meanwhile,
    unless `by` is `alone`."""
    result = getattr(by(), name)(*taken)
    if result < 0:
        number = ctypes.get_errno()
        raise MergeError(number, library().mayfly_merge_error().decode() or os.strerror(number))
    return result


def advise_all(
    regions: Sequence[tuple[int, int]], flags: int, by: Callable[[], ctypes.CDLL] = library
) -> None:
    """Shares regions of whole pages, all by one call."""
    ranges = (Range * len(regions))(*((start, end - start) for start, end in regions))
    call("mayfly_advise_all", ranges, len(regions), flags, by=by)


# A stack, locked memory, a mapping that another thread has unmapped since.
UNSHAREABLE = (errno.ENOTSUP, errno.ENOMEM, errno.EBUSY)
# Regions up to this together are advised by one call, for each call reads all mappings of the process.
BATCH = 16 << 20


def advise_possible(
    regions: Iterable[tuple[int, int]], flags: int, by: Callable[[], ctypes.CDLL] = library
) -> list[tuple[int, int]]:
    """Shares those regions of whole pages that can be shared, and returns them. The logger `mayfly` reports
    a reason, in one line, where none of them can."""
    shared: list[tuple[int, int]] = []
    refusal = None
    waiting = deque(batches(regions))
    while waiting:
        batch = waiting.popleft()
        try:
            advise_all(batch, flags, by)
            shared += batch
        except MergeError as error:
            if error.errno not in UNSHAREABLE:
                raise
            if len(batch) > 1:  # the others of it may be shared
                waiting.extendleft([region] for region in reversed(batch))
            else:
                refusal = refusal or error
    if refusal and not shared:
        report(f"nothing is shared: {refusal.strerror or refusal}")
    return shared


def batches(regions: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The regions, in lists of at most BATCH bytes; a longer region is alone."""
    batch: list[tuple[int, int]] = []
    room = BATCH
    for start, end in regions:
        if batch and end - start > room:
            yield batch
            batch, room = [], BATCH
        batch.append((start, end))
        room -= end - start
    if batch:
        yield batch


# No store, another user's store, no permission, no room: a server can run on without sharing.
ABSENT = {
    errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EPROTO, errno.EACCES,
    errno.EPERM,
    errno.ENOSPC, errno.EMFILE, errno.EFBIG, errno.ENOMEM, errno.ENOTSUP, errno.EBUSY,
}  # fmt: skip
logged: set[str] = set()


@contextlib.contextmanager
def or_without(required: bool) -> Iterator[None]:
    """Lets the program continue without sharing unless that is `required`: the logger `mayfly` reports
    why, in one line, once."""
    try:
        yield
    except MergeError as error:
        if required or error.errno not in ABSENT:
            raise
        report(f"nothing is shared: {error.strerror or error}")


def report(line: str) -> None:
    """Passes a line to the logger `mayfly`, once."""
    if line not in logged:
        import logging  # takes a while, and most programs never need it

        logged.add(line)
        logging.getLogger("mayfly").warning(line)


def stats() -> dict[str, int]:
    """What this process's calls have done so far: counts, pages of 4 KiB, and where the time went, in ns."""
    found = Stats()
    call("mayfly_merge_stats", ctypes.byref(found), ctypes.sizeof(found))
    return {name: getattr(found, name) for name, _ in Stats._fields_ if name != "size"}


def path() -> str:
    """How the next call will merge: "kernel", "engine", or "none: " and the reason."""
    return library().mayfly_merge_path().decode()


def refuse_bypass() -> None:
    """Raises MergeError (ENOTSUP) where a loaded library empties memory past the C library: in what it
    manages, merged bytes would come back in place of zeros."""
    file = library().mayfly_merge_bypass().decode(errors="replace")
    if file and path() != "kernel":
        raise MergeError(
            errno.ENOTSUP,
            f"{file} empties memory by system calls of its own: share a model's objects, with mayfly.advise",
        )


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt
APART = 64 << 10
# glibc's threshold for mappings begins with the first, and grows to the largest mapping that was freed, up to
# the other.
GLIBC_MMAP_THRESHOLDS = (128 << 10, 32 << 20)


@contextlib.contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Large blocks that glibc's malloc allocates meanwhile get mappings of their own.

    In malloc's heap they would lie at another offset in each instance, since Python's earlier allocations
    differ a little from run to run, and pages with equal contents at unequal offsets do not merge. malloc
    would still use free room in its heap first: this trims the room at the heap's end and allocates the rest
    meanwhile. Afterwards the threshold is what it was, or what the new blocks would have raised it to: with a
    lower one, each large buffer of a request would be mapped anew. It no longer grows. Mayfly's heap ignores
    this.
    """
    set_limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_limit is None:
        yield
        return
    free = ctypes.CDLL(None).free
    free.argtypes = [c_void_p]
    give_back_freed()
    threshold, mapped = mmap_threshold(), mapped_bytes()
    set_limit(M_MMAP_THRESHOLD, APART)
    taken = take_room()
    try:
        yield
    finally:
        for block in taken:
            free(block)
        grown = min(mapped_bytes() - mapped, GLIBC_MMAP_THRESHOLDS[1])
        threshold = max(threshold, grown)
        set_limit(M_MMAP_THRESHOLD, threshold)
        set_limit(M_TRIM_THRESHOLD, 2 * threshold)  # as glibc does


class MallocInfo(ctypes.Structure):
    """struct mallinfo2."""

    _fields_ = [
        (name, c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",  # blocks with mappings of their own
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",  # bytes that are free in the heap
            "keepcost",
        )
    ]


def allocator() -> ctypes.CDLL | None:
    """glibc, if its malloc tells how much it has."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = MallocInfo
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = c_void_p, [c_size_t], [c_void_p]
    return libc


def mapped_bytes() -> int:
    """Bytes of malloc's blocks that have mappings of their own."""
    libc = allocator()
    return libc.mallinfo2().hblkhd if libc else 0


def mmap_threshold() -> int:
    """The size from which glibc's malloc maps a block for itself, at most twice too large."""
    least, most = GLIBC_MMAP_THRESHOLDS
    libc = allocator()
    while libc and least < most:
        before = libc.mallinfo2().hblks
        block = libc.malloc(least)
        is_mapped = libc.mallinfo2().hblks > before
        libc.free(block)
        if is_mapped:
            break
        least *= 2
    return least


def take_room() -> list[int]:
    """Allocates all free room of glibc's heap in which a large block would fit; returns the blocks."""
    libc = allocator()
    if libc is None:
        return []
    before, taken = libc.mallinfo2(), []
    while len(taken) * APART < before.fordblks and libc.mallinfo2().hblks == before.hblks:
        taken += [libc.malloc(APART) for _ in range(16)]
    return taken


def give_back_freed() -> None:
    """Returns whole free pages to the system, which glibc keeps for later allocations, and Arrow's pool for
    its own."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and hasattr(arrow, "default_memory_pool"):
        arrow.default_memory_pool().release_unused()
