"""In an instance of `mayfly up` memory is only registered, and shared while the instance is idle: users
annotate it, and the platform merges it off the critical path (UPM §VII). The worker's bootstrap names the
process in an environment variable, and reads the list `named`."""

import os
from collections.abc import Iterable

from mayfly import library
from mayfly.regions import Region, whole_pages, without

RESTING = "MAYFLY_RESTING_PROCESS"  # its process id; its children merge by themselves
EVERYTHING = Region(0, 1 << 63)
named: list[Region] = []


def defers_sharing() -> bool:
    """Whether the worker shares this process's memory while the instance is idle."""
    return os.environ.get(RESTING) == str(os.getpid())


def share(pages: Iterable[Region], flags: int) -> None:
    """Shares whole pages now, or registers them for the worker."""
    if defers_sharing():
        named[:] = whole_pages([*named, *pages])
    else:
        library.advise_all(list(pages), flags)


def forget(pages: Iterable[Region]) -> None:
    """Removes these pages from those registered."""
    named[:] = without(named, sorted(pages))
