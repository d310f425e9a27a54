"""Objects that give their memory by Arrow's C data interface (Polars) or by DLPack."""

import datetime

import mayfly
import pytest
from mayfly import frames
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


def test_a_clone_of_a_frame_of_polars_is_written(monkeypatch):
    """The frame itself stays free for the program's other threads."""
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    written = []
    real = polars.DataFrame.write_ipc_stream

    def noted(frame, *places, **names):
        written.append(frame)
        return real(frame, *places, **names)

    monkeypatch.setattr(polars.DataFrame, "write_ipc_stream", noted)
    frame = polars.DataFrame({"x": [1, 2, 3]})
    assert frames.stream_of(frame) is not None
    assert len(written) == 1 and written[0] is not frame


def test_pack_lays_out_frames_of_polars():
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    count = 50_000
    frame = polars.DataFrame(
        {
            "x": numpy.arange(count, dtype="f8"),
            "text": [f"text {i}, which is longer than a view holds" for i in range(count)],
            "day": [datetime.date(2020, 1, 1 + i % 28) for i in range(count)],
            "kind": polars.Series([f"kind {i % 3}" for i in range(count)], dtype=polars.Categorical),
            "none": [None, 1] * (count // 2),
        }
    )
    part = frame[1000:2000]
    packed = mayfly.pack({"all": frame, "part": part, "column": frame["x"]})
    assert packed["all"].equals(frame) and packed["all"].schema == frame.schema
    assert packed["part"].equals(part) and size_bytes(packed["part"]) < size_bytes(frame) / 10
    assert packed["column"].equals(frame["x"]) and packed["column"].name == "x"
    columns = sorted(regions_of([packed["all"]["x"], packed["all"]["text"]]))
    used = sum(region.size_bytes for region in columns)
    assert columns[-1].end - columns[0].start < 1.01 * used, "the columns lie side by side"
    assert size_bytes(packed["all"]) > 0.95 * size_bytes(frame)


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
