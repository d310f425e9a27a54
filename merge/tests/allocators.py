"""Allocators to preload, and the settings that make them return free memory at once."""

import pathlib

SYSTEM = pathlib.Path("/usr/lib/x86_64-linux-gnu")
ALLOCATORS = {
    "glibc": None,
    "jemalloc": SYSTEM / "libjemalloc.so.2",
    "tcmalloc": SYSTEM / "libtcmalloc_minimal.so.4",
    "mimalloc": max(SYSTEM.glob("libmimalloc.so.?"), default=SYSTEM / "libmimalloc.so"),
    "mayfly": "libmayfly_heap.so",
}
# Return free memory at once: then they use MADV_DONTNEED.
AT_ONCE = {
    "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MIMALLOC_PURGE_DELAY": "0",
    "TCMALLOC_RELEASE_RATE": "100",
}


def preloaded(built, name):
    """The allocator's library; none for glibc's own."""
    library = ALLOCATORS[name]
    return built.folder / library if isinstance(library, str) else library
