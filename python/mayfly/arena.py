"""The arena of packed memory: one mapping, in which every instance has the same blocks at the same
offsets."""

import contextlib
import mmap

LINE = 64  # small blocks begin a cache line
LARGE = 16 * mmap.PAGESIZE  # aligning such a block to a page wastes at most 1/16 of it
HUGE = 2 << 20


def place(sizes_bytes: list[int]) -> tuple[list[int], int]:
    """Offsets of blocks, in their order, and the end of the last one: large ones first, each at the start
    of a page, so that blocks common to only some instances have pages of their own; then small ones."""
    offsets, at = [0] * len(sizes_bytes), 0
    for large in (True, False):
        for block, size in enumerate(sizes_bytes):
            if (size >= LARGE) == large:
                to = mmap.PAGESIZE if large else LINE
                offsets[block] = at = -(-at // to) * to
                at += size
    return offsets, at


def new(size_bytes: int) -> mmap.mmap:
    """An arena with room for at least so many bytes. Raises OSError where the system has no memory for it."""
    # A mapping of whole huge pages is aligned to them, in every instance, and can be shared as such. Pages
    # that are never touched take no memory.
    whole = HUGE if size_bytes >= HUGE else mmap.PAGESIZE
    room_bytes = -(-size_bytes // whole) * whole
    arena = mmap.mmap(-1, room_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Pages that will be full are huge from the start: writing and merging them costs less.
    if full := size_bytes // HUGE * HUGE:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            arena.madvise(mmap.MADV_HUGEPAGE, 0, full)
    return arena
