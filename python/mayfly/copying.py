"""moved: copies any data so that its arrays lie in one arena.

pickle passes large buffers out of band (its protocol 5, PEP 574), and accepts other buffers in their place
when it loads. NumPy, pandas, Arrow, SciPy and scikit-learn all support that, so this module needs to know
none of them. Polars does not: its frames pass as a stream of Arrow's, in one buffer, and read from there."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import mmap
import pickle
import weakref
from typing import Any

from mayfly import frames
from mayfly.arena import new, place
from mayfly.library import large_blocks_apart
from mayfly.regions import Region, is_torch, of_buffer, whole_pages


class Writer(pickle.Pickler):
    """Leaves out PyTorch's tensors and modules: they stay the same objects."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]):
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.kept: list[Any] = []

    def reducer_override(self, thing: Any) -> Any:
        """A frame or a column of Polars by its stream; NotImplemented for all else, which pickle knows."""
        stream = frames.stream_of(thing) if frames.is_of(thing, "polars", "DataFrame", "Series") else None
        if stream is None:
            return NotImplemented
        return frames.of_stream, (pickle.PickleBuffer(stream), type(thing).__name__ == "Series")

    def persistent_id(self, thing: Any) -> int | None:
        """The number of an object that is kept; None if pickle is to write it."""
        if not (is_torch(thing, "Tensor") or is_torch(thing, "Module")):
            return None
        self.kept.append(thing)
        return len(self.kept) - 1


class Reader(pickle.Unpickler):
    """Reads the output of Writer, with other `buffers`, one for each that Writer passed out."""

    def __init__(self, file: io.BytesIO, buffers: list[Any], kept: list[Any]):
        super().__init__(file, buffers=buffers)
        self.kept = kept

    def persistent_load(self, key: int) -> Any:
        """A kept object, by its number."""
        return self.kept[key]


def moved(thing: Any) -> Any:
    """An equal object whose memory has the same layout in every instance that has an equal one.

    Raises TypeError for objects that pickle cannot copy.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    writer = Writer(file, buffers)
    try:
        writer.dump(thing)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        kind = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
        raise TypeError(f"cannot pack a {kind}: {error}") from error
    views = [buffer.raw() for buffer in buffers]
    offsets, size = place([view.nbytes for view in views])
    file.seek(0)
    if not size:
        return Reader(file, [], writer.kept).load()
    arena = new(size)
    copies = [copied(view, arena, offset) for offset, view in zip(offsets, views)]
    with large_blocks_apart(), cheap_collection():
        given = Reader(file, copies, writer.kept).load()
        referenced = release(copies)
    # Trees and the like have copied their buffer once more, a large one to pages of its own.
    regions = [Region(offset, offset + view.nbytes) for offset, view in zip(offsets, views)]
    for page in whole_pages(region for region, lives in zip(regions, referenced) if not lives):
        arena.madvise(mmap.MADV_DONTNEED, page.start, page.size_bytes)
    return given


def copied(view: memoryview, arena: mmap.mmap, offset: int) -> Any:
    """The bytes of a view, in the arena. Other Python threads run meanwhile."""
    copy = (ctypes.c_ubyte * view.nbytes).from_buffer(arena, offset)
    for source in of_buffer(view):
        ctypes.memmove(copy, source.start, source.size_bytes)
    return copy


def release(copies: list[Any]) -> list[bool]:
    """Drops the copies; returns which of them other objects still reference."""
    seen = [weakref.ref(copy) for copy in copies]
    copies.clear()
    gc.collect()
    return [copy() is not None for copy in seen]


@contextlib.contextmanager
def cheap_collection():
    """Garbage collections then cover only objects created inside, and not all modules of the program: 70
    ms of a server's start. Objects that the program itself has frozen stay frozen."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
