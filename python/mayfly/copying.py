"""moved: a copy of any data whose arrays lie in one arena.

pickle hands large memory out beside what it writes (its protocol 5, PEP 574), and takes other memory back in
its place. NumPy, pandas, Arrow, SciPy and scikit-learn all speak that, so none of them has to be known here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import mmap
import pickle
import weakref
from typing import Any

from mayfly.arena import new, place
from mayfly.library import large_blocks_apart
from mayfly.regions import Region, is_torch, of_buffer, whole_pages


class Writer(pickle.Pickler):
    """Keeps PyTorch's tensors and modules out: they are the same objects afterwards."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]):
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.kept: list[Any] = []

    def persistent_id(self, thing: Any) -> int | None:
        """The number of a thing that is kept, None for what pickle is to write."""
        if not (is_torch(thing, "Tensor") or is_torch(thing, "Module")):
            return None
        self.kept.append(thing)
        return len(self.kept) - 1


class Reader(pickle.Unpickler):
    """Reads what Writer has written, over `buffers` of its own, one for each that was handed out."""

    def __init__(self, file: io.BytesIO, buffers: list[Any], kept: list[Any]):
        super().__init__(file, buffers=buffers)
        self.kept = kept

    def persistent_load(self, key: int) -> Any:
        """What was kept, by its number."""
        return self.kept[key]


def moved(thing: Any) -> Any:
    """An equal thing whose memory lies alike in every instance that has an equal one.

    Raises TypeError for what has no memory of its own that could be moved.
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
        alive = let_go(copies)
    # Trees and the like have copied theirs once more, each on pages of its own if it is large.
    regions = [Region(offset, offset + view.nbytes) for offset, view in zip(offsets, views)]
    for page in whole_pages(region for region, lives in zip(regions, alive) if not lives):
        arena.madvise(mmap.MADV_DONTNEED, page.start, page.size_bytes)
    return given


def copied(view: memoryview, arena: mmap.mmap, offset: int) -> Any:
    """The bytes of a view, in the arena. Other Python threads run meanwhile."""
    copy = (ctypes.c_ubyte * view.nbytes).from_buffer(arena, offset)
    for source in of_buffer(view):
        ctypes.memmove(copy, source.start, source.size_bytes)
    return copy


def let_go(copies: list[Any]) -> list[bool]:
    """Which of them somebody else holds, too."""
    seen = [weakref.ref(copy) for copy in copies]
    copies.clear()
    gc.collect()
    return [copy() is not None for copy in seen]


@contextlib.contextmanager
def cheap_collection():
    """Collections look only at what is made meanwhile, and not at all the modules of a program: 70 ms of a
    server's start. Where the program has frozen its own objects these stay so."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
