"""Which mappings are new: interval arithmetic against a set of pages, and the kernel's own list."""

import mmap

from hypothesis import given
from hypothesis import strategies as st
from mayfly.growth import anonymous_mappings, without
from mayfly.regions import Region, regions_of


@st.composite
def ordered_regions(draw):
    edges = sorted(draw(st.sets(st.integers(0, 60), max_size=16)))
    return [Region(*pair) for pair in zip(edges[::2], edges[1::2], strict=False)]


def cells(regions):
    return {cell for start, end in regions for cell in range(start, end)}


@given(ordered_regions(), ordered_regions())
def test_without_is_the_difference(regions, taken):
    left = without(regions, taken)
    assert cells(left) == cells(regions) - cells(taken)
    assert left == sorted(left) and all(start < end for start, end in left)


def test_a_new_mapping_is_seen_and_a_shared_one_is_not():
    before = anonymous_mappings()
    private = mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, 1 << 22)
    new = cells(Region(start >> 12, end >> 12) for start, end in without(anonymous_mappings(), before))
    (wanted,), (unwanted,) = list(regions_of(private)), list(regions_of(shared))
    assert set(range(wanted.start >> 12, wanted.end >> 12)) <= new
    assert not set(range(unwanted.start >> 12, unwanted.end >> 12)) & new
