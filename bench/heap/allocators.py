"""The allocators that are compared: where each one's library is, and the settings it runs with.

A name may carry a variant, whose parts are joined by '-': `jemalloc:huge` runs on huge pages by its own
best setting, `jemalloc:decay-huge` returns memory in the background as well, `mayfly:lines` is the paper's
span layout. Every library is preloaded, glibc's too: Debian's redis-server is linked to jemalloc and would
use that.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.heap import peers
from bench.outcome import ROOT, BenchError

LIBRARY_FOLDERS = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib")]

# Debian's packages (the version of mimalloc differs between suites); the others are built from their authors'
# sources (see peers/).
FILES = {
    "glibc": "libc.so.6",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.[0-9]",
}
PEERS = [*FILES, *peers.BUILT]
DEFAULT = [*PEERS, "mayfly"]

# Allocators for third-party servers: as installed, as operators of servers set them, on huge pages.
SERVERS = [*PEERS, "glibc:arenas", "jemalloc:decay", "jemalloc531:decay"]
SERVERS += [f"{name}:huge" for name in PEERS] + ["jemalloc:decay-huge", "mayfly", "mayfly:huge"]
SERVERS_QUICK = ["glibc", "jemalloc:decay", "tcmalloc", "mayfly"]

# Each peer's setting for huge pages. Peers that are not here have none, so for every 'huge' variant the
# machine's transparent huge pages are `always` as well.
HUGE = {
    "glibc": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "jemalloc": {"MALLOC_CONF": "thp:always,metadata_thp:auto"},
    "jemalloc531": {"MALLOC_CONF": "thp:always,metadata_thp:auto"},
    "mimalloc": {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1", "MIMALLOC_LARGE_OS_PAGES": "1"},
    "mimalloc3": {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"},
}
DECAY = {"MALLOC_CONF": "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0"}

# Parts of a variant's name, by allocator, besides `huge` and `always`, which every one has.
PARTS = {
    "glibc": {"arenas": {"MALLOC_ARENA_MAX": "2"}},
    "jemalloc": {"decay": DECAY},
    "jemalloc531": {"decay": DECAY},
    "mayfly": {
        "fixed": {"MAYFLY_HEAP_LIFETIMES": "fixed:1s"},
        "oracle": {"SWING_ORACLE": "1"},
        "lines": {"MAYFLY_HEAP_SPANS": "lines"},
        "base": {"MAYFLY_HEAP_PAGES": "base"},
    },
}


@dataclass(frozen=True)
class Allocator:
    name: str
    library: Path
    settings: dict[str, str] = field(default_factory=dict)
    thp_always: bool = False  # for the whole machine, while it is measured
    khugepaged_fast: bool = False

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

    def environment(self, beside: Sequence[Path] = ()) -> dict[str, str]:
        """The environment of a measured program: this process's, less any other allocator's settings.

        Libraries `beside` the allocator's are preloaded after it.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAYFLY_HEAP_", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES"))
        }
        return {**kept, **self.settings, "LD_PRELOAD": ":".join(map(str, [self.library, *beside]))}


def find(name: str, added: dict[str, Allocator]) -> Allocator:
    """The allocator of that name, or a BenchError that names what is missing. `added`: by --peer."""
    base, _, variant = name.partition(":")
    settings = dict(added[base].settings) if base in added else {}
    pages = set()
    for part in filter(None, variant.split("-")):
        if part in ("huge", "always"):
            pages.add(part)
            more = HUGE.get(base, {}) if part == "huge" else {}
        elif part in PARTS.get(base, {}):
            more = PARTS[base][part]
        else:
            known = ", ".join(f"{base}:{one}" for one in [*PARTS.get(base, {}), "huge", "always"])
            raise BenchError(f"allocator '{name}': no such variant; there are {known}")
        for variable, value in more.items():
            # jemalloc reads one variable with all of its settings.
            settings[variable] = ",".join(filter(None, [settings.get(variable), value]))
    return Allocator(name, library(base, added), settings, bool(pages), "huge" in pages)


def find_all(names: str | list[str]) -> list[Allocator]:
    """The allocators named by NAME,... or by a list, each once."""
    names = names.split(",") if isinstance(names, str) else names
    return [find(name, {}) for name in dict.fromkeys(filter(None, names))]


def library(base: str, added: dict[str, Allocator]) -> Path:
    """The path of the allocator's library; builds one of peers.BUILT if it never was built."""
    if base == "mayfly":
        path = Path(os.environ.get("MAYFLY_HEAP_LIBRARY", ROOT / "target/release/libmayfly_heap.so"))
        if not path.exists():
            raise BenchError(f"{path}: not there; build it with 'cargo build --release -p mayfly_heap'")
        return path
    if base in added:
        if not added[base].library.exists():
            raise BenchError(f"--peer {base}={added[base].library}: no such file")
        return added[base].library
    if base in peers.BUILT:
        return peers.built(base)
    if base not in FILES:
        raise BenchError(
            f"allocator '{base}': not known; there are {', '.join(DEFAULT)}, or add --peer {base}=LIB.so"
        )
    for folder in LIBRARY_FOLDERS:
        if found := sorted(folder.glob(FILES[base])):
            return found[-1]
    raise BenchError(
        f"{FILES[base]} is not installed: run 'make setup' (bench/packages.txt names its package)"
    )
