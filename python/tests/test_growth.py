"""Finding new mappings: interval arithmetic against a set of pages, and the kernel's own list."""

import ctypes
import itertools
import mmap
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from mayfly import library
from mayfly.arena import HUGE
from mayfly.growth import anonymous_mappings, pieces
from mayfly.regions import Region, regions_of, without

PACKAGE = Path(__file__).parents[1]


@st.composite
def ordered_regions(draw):
    edges = sorted(draw(st.sets(st.integers(0, 60), max_size=16)))
    return [Region(*pair) for pair in zip(edges[::2], edges[1::2], strict=False)]


def cells(regions):
    return {cell for start, end in regions for cell in range(start, end)}


@settings(deadline=None)
@given(ordered_regions(), ordered_regions())
def test_without_is_the_difference(regions, taken):
    left = without(regions, taken)
    assert cells(left) == cells(regions) - cells(taken)
    assert left == sorted(left) and all(start < end for start, end in left)


@settings(deadline=None)
@given(st.integers(0, 1 << 14), st.integers(1, 1 << 16))
def test_pieces_cover_the_region_and_end_at_huge_pages(first_page, pages):
    region = Region(first_page * mmap.PAGESIZE, (first_page + pages) * mmap.PAGESIZE)
    found = list(pieces(region))
    assert [found[0].start, *(piece.end for piece in found)] == [
        *(piece.start for piece in found),
        region.end,
    ]
    assert all(0 < piece.size_bytes <= library.BATCH for piece in found)
    assert all(piece.end % HUGE == 0 for piece in found[:-1])


@settings(deadline=None)
@given(st.lists(st.integers(1, 3 * library.BATCH)))
def test_batches_are_of_all_regions_in_order(sizes):
    ends = list(itertools.accumulate(sizes))
    regions = list(zip([0, *ends], ends, strict=False))
    found = list(library.batches(regions))
    assert [region for batch in found for region in batch] == regions
    assert all(len(batch) == 1 or batch[-1][1] - batch[0][0] <= library.BATCH for batch in found)
    assert all(two[0][1] - one[0][0] > library.BATCH for one, two in itertools.pairwise(found))


def test_many_mappings_are_advised_by_few_calls(store):
    code = """
import mmap, mayfly
pages = [mmap.mmap(-1, 256 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(100)]
for number, one in enumerate(pages):
    one[:] = bytes([number, 1]) * (128 << 10)
    one.madvise(mmap.MADV_NOHUGEPAGE if number % 2 else mmap.MADV_HUGEPAGE)  # so none joins a neighbour
assert mayfly.advise_process() > 25 << 20
few = mayfly.stats()["calls"]
pages[50].madvise(16)  # MADV_DONTDUMP, which sharing would lose
assert mayfly.advise_process() > 24 << 20
assert " dd " in open("/proc/self/smaps").read()
print(few, all(one[:] == bytes([number, 1]) * (128 << 10) for number, one in enumerate(pages)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | store | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    calls, is_right = ran.stdout.split()
    assert is_right == "True"
    assert int(calls) < 20  # 25 MiB of these mappings, and the interpreter's own memory


def test_anonymous_mappings_lists_private_ones_only():
    before = anonymous_mappings()
    private = mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, 1 << 22)
    new = cells(Region(start >> 12, end >> 12) for start, end in without(anonymous_mappings(), before))
    (wanted,), (unwanted,) = list(regions_of(private)), list(regions_of(shared))
    assert set(range(wanted.start >> 12, wanted.end >> 12)) <= new
    assert not set(range(unwanted.start >> 12, unwanted.end >> 12)) & new


def test_a_large_block_of_malloc_begins_a_mapping_while_blocks_lie_apart():
    """The header of a block with its own mapping is the mapping's first 16 bytes."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.mallopt(library.M_MMAP_THRESHOLD, 4 << 20)  # from now on glibc puts smaller ones into its heap

    def offset():
        block = libc.malloc(1 << 20)
        try:
            return block % mmap.PAGESIZE, any(start <= block < end for start, end in heaps())
        finally:
            libc.free(block)

    def heaps():
        return without(anonymous_mappings(heap=True), anonymous_mappings())

    hole = libc.malloc(2 << 20)
    libc.malloc(100)  # the heap does not end at a page boundary
    libc.free(hole)
    assert offset()[1]
    with library.large_blocks_apart():
        assert offset() == (16, False)  # neither at the heap's end nor in the hole
    assert offset()[1]


THRESHOLDS = """
import ctypes
from mayfly import library
libc = library.allocator()
libc.mallopt(library.M_MMAP_THRESHOLD, 128 << 10)
before = library.mmap_threshold()
with library.large_blocks_apart():
    small = libc.malloc(1 << 20)
after_a_small_one = library.mmap_threshold()
with library.large_blocks_apart():
    large = [libc.malloc(20 << 20) for _ in range(3)]
print(before >> 10, after_a_small_one >> 10, library.mmap_threshold() >> 10)
"""


def test_buffers_as_large_as_the_model_are_served_by_mallocs_heap_afterwards():
    """Or each request would have the pages of its buffers mapped anew."""
    words = [sys.executable, "-c", THRESHOLDS]
    ran = subprocess.run(words, cwd=PACKAGE, capture_output=True, text=True, check=True)
    before, *after = ran.stdout.split()
    assert int(before) < 1024 and after == ["2048", "32768"]
