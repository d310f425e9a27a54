"""The memory of an object: against NumPy's own answer, and for all objects with a buffer."""

import array
import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from mayfly.regions import Region, regions_of, whole_pages

PAGE = mmap.PAGESIZE


def only(thing):
    found = list(regions_of(thing))
    assert len(found) == 1
    return found[0]


@settings(deadline=None)
@given(st.data())
def test_any_view_of_an_array_has_the_bytes_numpy_reports(data):
    base = numpy.zeros(
        data.draw(arrays.array_shapes(max_dims=4, max_side=9)), dtype=data.draw(st.sampled_from("bhiqfdD"))
    )
    view = base[data.draw(arrays.basic_indices(base.shape, allow_ellipsis=True))]
    view = numpy.asarray(view).transpose(data.draw(st.permutations(range(numpy.asarray(view).ndim))))
    low, high = numpy.lib.array_utils.byte_bounds(view)
    found = list(regions_of(view))
    assert found == ([Region(low, high)] if view.size else [])


def test_broadcast_array_is_its_one_row():
    row = numpy.arange(10)
    wide = numpy.broadcast_to(row, (1000, 10))
    assert only(wide) == Region(row.ctypes.data, row.ctypes.data + row.nbytes)


@pytest.mark.parametrize("dtype", ["U7", "S5", "M8[s]", "f2", "?", [("a", "i4"), ("b", "f8", 3)]])
def test_every_kind_of_element(dtype):
    block = numpy.zeros(100, dtype=dtype)
    assert only(block) == Region(block.ctypes.data, block.ctypes.data + block.nbytes)


def test_objects_are_refused():
    with pytest.raises(TypeError, match="Python objects"):
        list(regions_of(numpy.array([object(), None])))


@pytest.mark.parametrize(
    "holder",
    [b"x" * 5000, bytearray(5000), array.array("d", range(700)), (ctypes.c_int * 900)(), mmap.mmap(-1, 8192)],
    ids=["bytes", "bytearray", "array", "ctypes", "mmap"],
)
def test_buffers(holder):
    size = memoryview(holder).nbytes
    found = only(holder)
    assert found.size_bytes == size
    assert ctypes.string_at(found.start, size) == bytes(memoryview(holder))
    assert only(memoryview(holder)) == found


def test_part_of_a_buffer():
    holder = bytearray(range(200))
    found = only(memoryview(holder)[50:150:7])
    start = only(holder).start
    assert found == Region(start + 50, start + 50 + 14 * 7 + 1)


def test_containers():
    one, two = numpy.ones(1000), bytearray(100)
    state = {"weights": [one, (two,)], "version": 3, "name": "x", "nothing": None}
    state["self"] = state
    assert sorted(regions_of(state)) == sorted([*regions_of(one), *regions_of(two)])


def test_text_is_no_container_of_itself():
    with pytest.raises(TypeError, match="memory of a str"):
        list(regions_of("text"))


def test_unknown_object_is_named():
    with pytest.raises(TypeError, match="pathlib.*dict or list"):
        list(regions_of(Path()))


def test_session_of_onnx_runtime_gets_a_hint():
    session = type("InferenceSession", (), {"__module__": "onnxruntime.capi.session"})()
    with pytest.raises(TypeError, match="mayfly.advising"):
        list(regions_of(session))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20 * PAGE), st.integers(1, 3 * PAGE))))
def test_whole_pages_are_those_wholly_covered(pairs):
    regions = [Region(start, start + size) for start, size in pairs]
    covered = numpy.zeros(24 * PAGE, dtype=bool)
    for start, end in regions:
        covered[start:end] = True
    wanted = covered.reshape(24, PAGE).all(axis=1)
    found = numpy.zeros(24, dtype=bool)
    pages = whole_pages(regions)
    for start, end in pages:
        assert start % PAGE == end % PAGE == 0 and start < end
        assert not found[start // PAGE : end // PAGE].any()
        found[start // PAGE : end // PAGE] = True
    assert (found == wanted).all()


def test_importing_mayfly_imports_neither_numpy_nor_torch():
    code = "import sys, mayfly; list(mayfly.regions.regions_of(bytes(9))); print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert ran.returncode == 0, ran.stderr
    assert not {"numpy", "torch"} & set(ran.stdout.split())


def test_object_that_gives_copies_is_refused():
    """As Pillow's images do."""

    class Image:
        __array_interface__ = {"shape": (8192,), "typestr": "|u1", "version": 3, "data": bytes(8192)}

    with pytest.raises(TypeError, match="an? Image gives copies.*numpy.array"):
        list(regions_of(Image()))


def test_values_without_memory_are_passed_by_type(monkeypatch):
    """A vocabulary of a million words must not be examined library by library."""
    examined = []
    monkeypatch.setattr("mayfly.regions.parts_of", lambda one: examined.append(one))
    vocabulary = {f"word {i}": i for i in range(1000)}
    deep = [(1, "text", b"bytes", [2.0, None]) for _ in range(1000)]
    data = bytearray(8192)
    assert [
        region.size_bytes for region in regions_of({"words": vocabulary, "deep": deep, "data": data})
    ] == [8192]
    assert len(examined) == 1 and examined[0] is data
    with pytest.raises(TypeError, match="cannot find the memory of a int"):
        list(regions_of(7))
