"""advise and unadvise: share the pages behind an object, and make them private again."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

from mayfly import library, naming
from mayfly.packing import give_back_replaced
from mayfly.regions import Region, regions_of, whole_pages


def advise(
    thing: Any, *, quiet: bool = False, background: bool = False, required: bool = True
) -> int | Pending:
    """Shares every whole page behind `thing` with identical pages of other instances, copy-on-write (UPM
    §IV).

    `thing` is a NumPy array, a PyTorch tensor or module, a pandas frame, an Arrow table, a fitted estimator
    of scikit-learn, anything with a buffer (bytes, memoryview, mmap...), or a dict, list, tuple or set of
    them. The call returns once the pages are shared, with the number of bytes examined. It leaves out pages
    at the edges that also hold other data. The contents do not change, and a later write gives this process
    its own copy of the page. Calling again after a change shares the new contents.

    quiet: a promise that no thread writes to the memory meanwhile. Needs no permission, and is the only way
    for files mapped privately and writably. background: returns at once, with a Pending that waits for the
    end (UPM §VII). required=False: where nothing can be shared (no page store, no permission) the program
    runs on unshared; the logger `mayfly` reports why in one line, and the call returns 0.

    In an instance of `mayfly up` the call only registers the pages: the worker shares them while the
    instance is idle.

    Raises MergeError (an OSError) when the pages cannot be shared, TypeError or ValueError when `thing` has
    no memory to share.
    """
    flags = library.QUIET if quiet else 0
    pages = whole_pages(regions_of(thing))
    give_back_replaced()
    with library.or_without(required):
        if background:
            return Pending(thing, pages, flags, required)
        naming.share(pages, flags)
        return sum(region.size_bytes for region in pages)
    return 0


def unadvise(thing: Any) -> int:
    """Makes every whole page behind `thing` private to this process again. Returns the number of bytes.
    Raises MergeError when the pages are shared still, for want of memory, and TypeError or ValueError as
    `advise`."""
    pages = whole_pages(regions_of(thing))
    naming.forget(pages)
    for region in pages:
        library.call("mayfly_unadvise", region.start, region.size_bytes)
    return sum(region.size_bytes for region in pages)


class Pending:
    """Merging in the background. Keeps the memory alive until it has ended; `wait` returns the result."""

    def __init__(self, thing: Any, pages: list[Region], flags: int, required: bool = True):
        self._thing, self._required = thing, required
        self._bytes = sum(region.size_bytes for region in pages)
        self._tickets: list[int] = []
        if naming.defers_sharing():
            naming.share(pages, flags)
            return
        for region in pages:
            ticket = library.call("mayfly_advise_begin", region.start, region.size_bytes, flags)
            self._tickets.append(ticket)

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end and returns the bytes examined. Raises TimeoutError after `timeout_s`, for each
        region of the object, and MergeError when merging failed."""
        milliseconds = -1 if timeout_s is None else round(timeout_s * 1000)
        while self._tickets:
            try:
                library.call("mayfly_advise_wait", self._tickets[-1], milliseconds)
            except library.MergeError as error:
                if error.errno == errno.ETIMEDOUT and milliseconds >= 0:
                    raise TimeoutError(errno.ETIMEDOUT, f"not merged within {timeout_s} s") from error
                self._tickets.pop()
                self._bytes = 0
                with library.or_without(self._required):
                    raise
                continue
            self._tickets.pop()
        self._thing = None
        return self._bytes

    def done(self) -> bool:
        """Whether it has ended successfully; raises MergeError when it failed."""
        try:
            self.wait(0)
        except TimeoutError:
            return False
        return True

    def __del__(self):
        # The memory must stay mapped until the library has finished with it.
        if getattr(self, "_tickets", None):
            with contextlib.suppress(library.MergeError):
                self.wait()
