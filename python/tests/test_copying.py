"""pack of objects other than modules: an equal object, laid out identically in every process."""

import gc
import mmap
import subprocess
import sys
from pathlib import Path

import mayfly
import numpy
import pytest
from mayfly.regions import regions_of, whole_pages

ROOT = Path(__file__).resolve().parents[2]


def test_arrays_are_equal_and_lie_on_pages_of_their_own():
    rng = numpy.random.default_rng(1)
    large, small, turned = rng.random(1 << 16), rng.integers(0, 9, 100), rng.random((300, 400)).T
    sealed = rng.random(5000)
    sealed.flags.writeable = False
    thing = {"a": large, "b": [large, small], "c": (turned, sealed), "name": "x", "none": None}
    packed = mayfly.pack(thing)
    assert packed["a"] is packed["b"][0] and packed["a"] is not large  # one array stays one
    assert packed["name"] == "x" and packed["none"] is None
    for old, new in [
        (large, packed["a"]),
        (small, packed["b"][1]),
        *zip(thing["c"], packed["c"], strict=True),
    ]:
        assert (old == new).all() and old.dtype == new.dtype and old.strides == new.strides
        assert old.flags.writeable == new.flags.writeable
    packed["a"][0] = 7
    assert large[0] != 7
    used = sum(array.nbytes for array in (large, small, turned, sealed))
    assert sum(page.size_bytes for page in whole_pages(regions_of(packed))) > 0.95 * used
    assert packed["a"].ctypes.data % mmap.PAGESIZE == 0


def test_arrays_copied_again_are_kept_once():
    """As scikit-learn's trees copy their arrays."""
    packed = mayfly.pack([Copies(numpy.ones(1 << 20)), numpy.full(1 << 18, 2.0)])
    (where,) = regions_of(packed[1])
    assert packed[0].array.sum() == 1 << 20 and (packed[1] == 2).all()
    resident = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef":
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            inside = start <= where.start < end
        elif inside and line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
    assert resident < 5 << 20, resident  # 2 MiB are referenced, 8 are not


class Copies:
    def __init__(self, array):
        self.array = array

    def __setstate__(self, state):
        self.array = state["array"].copy()


PLACES = """
import sys, numpy, mayfly
junk = [bytearray(int(n)) for n in numpy.random.default_rng(int(sys.argv[1])).integers(1, 9000, 500)]
rng = numpy.random.default_rng(1)
packed = mayfly.pack([rng.random(int(n)) for n in rng.integers(1, 60000, 40)])
first = min(array.ctypes.data for array in packed)
print([array.ctypes.data - first for array in packed], first % 4096)
"""


def test_every_process_has_the_same_places():
    said = {
        subprocess.run(
            [sys.executable, "-c", PLACES, str(seed)],
            env={"PYTHONPATH": str(ROOT / "python")},
            check=True,
            capture_output=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(said) == 1


def test_only_the_programs_own_objects_stay_frozen():
    """moved() collects only its own garbage: it freezes all other objects for that time."""
    gc.unfreeze()
    mayfly.pack([numpy.ones(1 << 16)])
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        mayfly.pack([numpy.ones(1 << 16)])
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_error_names_an_object_that_cannot_be_copied():
    with pytest.raises(TypeError, match="cannot pack a _io"), open("/dev/null") as file:
        mayfly.pack(file)
    assert mayfly.pack("text") == "text" and mayfly.pack({}) == {}
