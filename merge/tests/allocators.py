"""Allocators that are preloaded, and how they are made to give back at once what is free."""

import pathlib

SYSTEM = pathlib.Path("/usr/lib/x86_64-linux-gnu")
ALLOCATORS = {
    "glibc": None,
    "jemalloc": SYSTEM / "libjemalloc.so.2",
    "tcmalloc": SYSTEM / "libtcmalloc_minimal.so.4",
    "mimalloc": SYSTEM / "libmimalloc.so.2.0",
    "mayfly": "libmayfly_heap.so",
}
# Give back at once what is free: that is when MADV_DONTNEED is used.
AT_ONCE = {
    "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MIMALLOC_PURGE_DELAY": "0",
    "TCMALLOC_RELEASE_RATE": "100",
}


def preloaded(built, name):
    """The allocator's library; none for glibc's own."""
    library = ALLOCATORS[name]
    return built.folder / library if isinstance(library, str) else library
