"""Where packed memory lies: one mapping, in which the same blocks have the same places in every instance."""

import contextlib
import mmap

LINE = 64  # small blocks begin a cache line
LARGE = 16 * mmap.PAGESIZE  # beginning a page wastes at most 1/16 of such a block
HUGE = 2 << 20


def place(sizes_bytes: list[int]) -> tuple[list[int], int]:
    """Offsets of blocks, in their order, and where the last one ends: large ones first, each on a page's
    beginning, so that what only some instances have in common is on pages of its own; then small ones."""
    offsets, at = [0] * len(sizes_bytes), 0
    for large in (True, False):
        for block, size in enumerate(sizes_bytes):
            if (size >= LARGE) == large:
                to = mmap.PAGESIZE if large else LINE
                offsets[block] = at = -(-at // to) * to
                at += size
    return offsets, at


def new(size_bytes: int) -> mmap.mmap:
    """The arena, with room for so many bytes and more. Raises OSError where the system has none."""
    # Mappings of whole huge pages begin where those begin, in every instance, and can be shared as such.
    # What is never touched takes no memory.
    whole = HUGE if size_bytes >= HUGE else mmap.PAGESIZE
    room_bytes = -(-size_bytes // whole) * whole
    arena = mmap.mmap(-1, room_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Those that will be full are huge from the beginning: to write them and to merge them costs less.
    if full := size_bytes // HUGE * HUGE:
        with contextlib.suppress(OSError):  # a kernel without
            arena.madvise(mmap.MADV_HUGEPAGE, 0, full)
    return arena
