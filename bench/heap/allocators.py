"""The allocators that are compared: where each one's library is, and the settings it runs with.

A name may carry a variant: `jemalloc:huge` runs on huge pages by its own best setting, `mayfly:lines` is the
paper's span layout. Every library is preloaded, glibc's too: Debian's redis-server is linked to jemalloc and
would use that.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from bench.outcome import ROOT, BenchError

LIBRARY_FOLDERS = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib")]
PEERS = ["glibc", "jemalloc", "tcmalloc", "mimalloc"]
DEFAULT = [*PEERS, "mayfly"]

FILES = {
    "glibc": "libc.so.6",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.2",
}

# How each peer is told to use huge pages. gperftools' tcmalloc has no way of its own, so for every ':huge'
# variant the machine's transparent huge pages are `always` as well.
HUGE = {
    "glibc": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "jemalloc": {"MALLOC_CONF": "thp:always,metadata_thp:auto"},
    "mimalloc": {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1", "MIMALLOC_LARGE_OS_PAGES": "1"},
}

MAYFLY_VARIANTS = {
    "": {},
    "fixed": {"MAYFLY_HEAP_LIFETIMES": "fixed:1s"},
    "oracle": {"SWING_ORACLE": "1"},
    "lines": {"MAYFLY_HEAP_SPANS": "lines"},
    "lines-oracle": {"MAYFLY_HEAP_SPANS": "lines", "SWING_ORACLE": "1"},
    "base": {"MAYFLY_HEAP_PAGES": "base"},
}


@dataclass(frozen=True)
class Allocator:
    name: str
    library: Path
    settings: dict[str, str] = field(default_factory=dict)
    thp_always: bool = False

    @property
    def base(self) -> str:
        return self.name.partition(":")[0]

    @property
    def variant(self) -> str:
        return self.name.partition(":")[2]

    @property
    def key(self) -> str:
        """The name as part of a dotted key."""
        return self.name.replace(":", "_").replace("-", "_").replace(".", "_")

    def environment(self) -> dict[str, str]:
        """The environment of a measured program: this process's, less any other allocator's settings."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAYFLY_HEAP_", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES"))
        }
        return {**kept, **self.settings, "LD_PRELOAD": str(self.library)}


def find(name: str, peers: dict[str, Allocator]) -> Allocator:
    """The allocator of that name, or a BenchError that says what is missing."""
    base, _, variant = name.partition(":")
    if base == "mayfly":
        library = Path(os.environ.get("MAYFLY_HEAP_LIBRARY", ROOT / "target/release/libmayfly_heap.so"))
        if not library.exists():
            raise BenchError(f"{library}: not there; build it with 'cargo build --release -p mayfly_heap'")
        if variant not in MAYFLY_VARIANTS:
            known = ", ".join(f"mayfly:{one}" for one in MAYFLY_VARIANTS if one)
            raise BenchError(f"allocator '{name}': no such variant; there are {known}")
        return Allocator(name, library, MAYFLY_VARIANTS[variant])
    if base in peers:
        library = peers[base].library
        if not library.exists():
            raise BenchError(f"--peer {base}={library}: no such file")
    elif base in FILES:
        library = next(
            (folder / FILES[base] for folder in LIBRARY_FOLDERS if (folder / FILES[base]).exists()), None
        )
        if library is None:
            raise BenchError(
                f"{FILES[base]} is not installed: run 'make setup' (bench/packages.txt names its package)"
            )
    else:
        raise BenchError(
            f"allocator '{name}': not known; there are {', '.join(DEFAULT)}, or add --peer {base}=LIB.so"
        )
    settings = peers[base].settings if base in peers else {}
    if variant == "huge":
        return Allocator(name, library, settings | HUGE.get(base, {}), thp_always=True)
    if variant:
        raise BenchError(f"allocator '{name}': no such variant; there is {base}:huge")
    return Allocator(name, library, settings)
