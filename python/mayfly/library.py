"""Finds libmayfly_merge.so and calls it (merge/include/mayfly_merge.h); every failure becomes a
MergeError."""

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

NAME = "libmayfly_merge.so"
QUIET = 2  # MAYFLY_ADVISE_QUIET


class MergeError(OSError):
    """What could not be merged, and why. `errno` is the library's; the contents of the memory are right
    whatever it is."""


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
    """Where the library may be, the first that is there counts."""
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


@functools.cache
def alone() -> ctypes.PyDLL:
    """The same library; no other Python thread runs during its calls, so none gives memory back meanwhile."""
    return load(ctypes.PyDLL)


def load(kind: type) -> ctypes.CDLL:
    """The library by ctypes.CDLL or PyDLL. Raises MergeError (ENOENT) where it is not found, which says where
    it was looked for."""
    named = os.environ.get("MAYFLY_MERGE_LIBRARY")
    said = ""
    for path in [named] if named else candidates():
        if "/" in path and not os.path.exists(path):
            said = f"{path}: not there"
            continue
        try:
            return declared(kind(path, use_errno=True))
        except (OSError, AttributeError) as error:
            said = f"{path}: {error}"
    if named:
        raise MergeError(errno.ENOENT, f"MAYFLY_MERGE_LIBRARY: {said}")
    raise MergeError(
        errno.ENOENT,
        f"{NAME} not found beside the package, in target/release or among the system's libraries: "
        "build it with 'cargo build --release', or name it in MAYFLY_MERGE_LIBRARY",
    )


def declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Says what the functions take and give; AttributeError when it is some other library."""
    for name, result, *taken in (
        ("mayfly_advise", c_int, c_void_p, c_size_t, c_uint),
        ("mayfly_advise_all", c_int, ctypes.POINTER(Range), c_size_t, c_uint),
        ("mayfly_unadvise", c_int, c_void_p, c_size_t),
        ("mayfly_advise_begin", c_int64, c_void_p, c_size_t, c_uint),
        ("mayfly_advise_wait", c_int, c_int64, c_int),
        ("mayfly_merge_stats", c_int, ctypes.POINTER(Stats), c_size_t),
        ("mayfly_merge_error", c_char_p),
        ("mayfly_merge_path", c_char_p),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, taken
    return loaded


def call(name: str, *taken: Any, by: Callable[[], ctypes.CDLL] = library) -> int:
    """Calls a function that gives -1 and errno on failure. Other Python threads run meanwhile, unless `by` is
    `alone`."""
    result = getattr(by(), name)(*taken)
    if result < 0:
        number = ctypes.get_errno()
        raise MergeError(number, library().mayfly_merge_error().decode() or os.strerror(number))
    return result


def advise_all(regions: Sequence[tuple[int, int]], flags: int) -> None:
    """Shares whole pages, each from a start to an end, all by one call."""
    ranges = (Range * len(regions))(*((start, end - start) for start, end in regions))
    call("mayfly_advise_all", ranges, len(regions), flags)


# No store, not the user's, not permitted here, no room: what a server can do without.
ABSENT = {
    errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EPROTO, errno.EACCES,
    errno.EPERM,
    errno.ENOSPC, errno.EMFILE, errno.EFBIG, errno.ENOMEM, errno.ENOTSUP, errno.EBUSY,
}  # fmt: skip
said: set[str] = set()


@contextlib.contextmanager
def or_without(required: bool) -> Iterator[None]:
    """Lets the program go on without sharing unless that is `required`: a line of the logger `mayfly`
    says why, once."""
    try:
        yield
    except MergeError as error:
        if required or error.errno not in ABSENT:
            raise
        line = f"nothing is shared: {error.strerror or error}"
        if line not in said:
            import logging  # takes a while, and most programs never need it

            said.add(line)
            logging.getLogger("mayfly").warning(line)


def stats() -> dict[str, int]:
    """What this process's calls have done so far: counts, pages of 4 KiB, and where the time went, in ns."""
    found = Stats()
    call("mayfly_merge_stats", ctypes.byref(found), ctypes.sizeof(found))
    return {name: getattr(found, name) for name, _ in Stats._fields_ if name != "size"}


def path() -> str:
    """How the next call will merge: "kernel", "engine", or "none: " and why not."""
    return library().mayfly_merge_path().decode()


M_MMAP_THRESHOLD = -3  # mallopt
APART = 64 << 10
GLIBC_MMAP_THRESHOLD = 128 << 10


@contextlib.contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Large blocks that glibc's malloc gives meanwhile get mappings of their own.

    In malloc's heap they would lie at another offset in each instance, since what Python allocates before
    differs a little from run to run, and pages with equal contents at unequal offsets do not merge. Room in
    the heap would be used first all the same: at its end it is given back, and elsewhere it is taken
    meanwhile. Afterwards the limit is what it is at first, but no longer grows. Mayfly's heap ignores this.
    """
    set_limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_limit is None:
        yield
        return
    give_back_freed()
    set_limit(M_MMAP_THRESHOLD, APART)
    taken = take_room()
    try:
        yield
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [c_void_p]
        for block in taken:
            free(block)
        set_limit(M_MMAP_THRESHOLD, GLIBC_MMAP_THRESHOLD)


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


def take_room() -> list[int]:
    """Takes all free room of glibc's heap in which a large block would fit; gives the blocks that it is."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return []
    libc.mallinfo2.restype = MallocInfo
    libc.malloc.restype, libc.malloc.argtypes = c_void_p, [c_size_t]
    before, taken = libc.mallinfo2(), []
    while len(taken) * APART < before.fordblks and libc.mallinfo2().hblks == before.hblks:
        taken += [libc.malloc(APART) for _ in range(16)]
    return taken


def give_back_freed() -> None:
    """glibc keeps freed blocks for the next allocation: hands whole free pages back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
