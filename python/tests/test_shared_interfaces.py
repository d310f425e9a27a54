"""Objects that give their memory by Arrow's C data interface (Polars) or by DLPack."""

import pytest
from mayfly.regions import regions_of, whole_pages

numpy = pytest.importorskip("numpy")


def size_bytes(thing):
    return sum(region.size_bytes for region in whole_pages(regions_of(thing)))


def test_polars_gives_its_own_memory():
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    count = 100_000
    texts = [f"text {i}, which is longer than a view holds" for i in range(count)]
    frame = polars.DataFrame({"x": numpy.arange(count, dtype="f8"), "text": texts})
    assert size_bytes(frame) > count * 8 + 0.9 * sum(map(len, texts))
    assert sorted(regions_of(frame)) == sorted(regions_of(frame)), "copies would lie elsewhere"
    first = frame["x"].to_numpy().__array_interface__["data"][0]
    assert [region.start for region in regions_of(frame["x"])] == [first]


class ByDlpack:
    """An array that has no other interface."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def test_dlpack_gives_its_own_memory():
    array = numpy.arange(1 << 18, dtype="f4")
    assert list(regions_of(ByDlpack(array))) == list(regions_of(array))
    with pytest.raises(ValueError, match="on a device"):
        list(regions_of(ByDlpack(array, device=(2, 0))))
