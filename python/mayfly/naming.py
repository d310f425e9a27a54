"""In an instance of `mayfly up` memory is only named, and shared when the instance has no work: users
annotate it, and the platform merges it off the critical path (UPM §VII). The worker's bootstrap says which
process does so, and reads what is named."""

import os
from collections.abc import Iterable

from mayfly import library
from mayfly.regions import Region, whole_pages, without

RESTING = "MAYFLY_RESTING_PROCESS"  # its process id; its children merge by themselves
EVERYTHING = Region(0, 1 << 63)
named: list[Region] = []


def is_only_named() -> bool:
    """Whether this process is one whose memory the worker shares while it has no work."""
    return os.environ.get(RESTING) == str(os.getpid())


def share(pages: Iterable[Region], flags: int) -> None:
    """Shares whole pages now, or names them."""
    if is_only_named():
        named[:] = whole_pages([*named, *pages])
    else:
        library.advise_all(list(pages), flags)


def forget(pages: Iterable[Region]) -> None:
    """Takes back what was named of these pages."""
    named[:] = without(named, sorted(pages))
