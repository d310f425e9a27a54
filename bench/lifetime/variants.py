"""The variants of a workload's run: the compared allocators, and runs that record."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from bench.heap.allocators import Allocator, find
from bench.lifetime import build
from bench.merge.machine import MAYFLY
from bench.outcome import BenchError

# GSlice would keep small objects from the allocator: glib below 2.76 has an allocator of its own.
EVERYWHERE = {"G_SLICE": "always-malloc", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Variant(Allocator):
    """An allocator with the watcher beside it. `prefix`: the command that starts the program, if it is not
    started directly; such a command preloads the allocator itself, and no watcher runs."""

    label: str = ""
    prefix: tuple[str, ...] = ()

    def watched(self, folder: Path) -> dict[str, str]:
        """The environment of the program: the watcher writes live bytes over time to `watch` in the folder,
        Mayfly's heap its counts to `statistics`."""
        if self.prefix:
            return self.environment() | EVERYWHERE | {"LD_PRELOAD": ""}
        reports = {"LIFETIME_WATCH": str(folder / "watch"), "MAYFLY_HEAP_STATS": str(folder / "statistics")}
        preload = f"{self.library}:{build.watcher()}"
        return self.environment() | EVERYWHERE | {"LD_PRELOAD": preload} | reports


def made_from(
    name: str,
    label: str,
    base: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    added: Mapping[str, Allocator] = MappingProxyType({}),
) -> Variant:
    one = find(base, dict(added))
    return Variant(**(vars(one) | {"name": name, "settings": one.settings | settings}), label=label)


def tcmalloc() -> Variant:
    return made_from("tcmalloc", "tcmalloc, huge pages", "tcmalloc:huge")


def tcmalloc_returning() -> Variant:
    """The paper's count of tcmalloc's pages (§9.1): every free span is taken to be returned at once, and a
    huge page is occupied while anything on it is. Aggressive decommit on small pages leaves exactly the pages
    that are not in free spans."""
    settings = {"TCMALLOC_AGGRESSIVE_DECOMMIT": "1"}
    return made_from("tcmalloc_returning", "tcmalloc, as the paper counts", "tcmalloc", settings)


PEERS = ("tcmalloc", "tcmalloc_returning", "jemalloc531:decay", "mimalloc3", "glibc")


def plain(name: str) -> str:
    """A variant's name as part of a dotted key."""
    return name.replace(":", "_").replace("-", "_")


def peer(name: str, added: Mapping[str, Allocator]) -> Variant:
    """One of PEERS, or of those `added` by --peer: tcmalloc as the paper measures it, others as installed."""
    of_tcmalloc = {"tcmalloc": tcmalloc, "tcmalloc_returning": tcmalloc_returning}
    if name in of_tcmalloc:
        return of_tcmalloc[name]()
    return made_from(plain(name), name, name, added=added)


def added_by(options: Iterable[str]) -> dict[str, Allocator]:
    """The allocators that --peer names, each NAME=LIB.so and any settings as ,VAR=VALUE; ValueError for
    other text. So Mesh, which no package has, is measured without being part of any build."""
    found = {}
    for text in options:
        if not all(all(part.partition("=")) for part in text.split(",")):
            raise ValueError(f"{text}: write NAME=LIB.so, then any settings as ,VAR=VALUE")
        (name, library), *settings = (part.split("=", 1) for part in text.split(","))
        found[name] = Allocator(name, Path(library).absolute(), dict(settings))
    return found


def online() -> Variant:
    return made_from("online", "Mayfly, online", "mayfly")


def with_model(model: Path) -> Variant:
    settings = {"MAYFLY_HEAP_MODEL": str(model)}
    return made_from("model", "Mayfly, model and online", "mayfly", settings)


def model_only(model: Path) -> Variant:
    settings = {"MAYFLY_HEAP_MODEL": str(model), "MAYFLY_HEAP_LIFETIMES": "model"}
    return made_from("model_only", "Mayfly, model only", "mayfly", settings)


def paper(model: Path, deadline_factor: int = 2) -> Variant:
    """The paper's configuration, as far as the heap has it (docs/heap.md): bump allocation over lines (§6.6),
    free blocks for shorter classes alone (§6.3), deadlines of K times the class (§6.4), the model alone, no
    page that stays longer than its last object, and none whose parts are returned."""
    settings = {
        "MODEL": str(model),
        "LIFETIMES": "model",
        "SPANS": "lines",
        "RECYCLE": "longest",
        "DEADLINE_FACTOR": str(deadline_factor),
        "DECAY": "never",
        "RETAIN": "0",
        "THREAD": "off",
    }
    own = {f"MAYFLY_HEAP_{name}": value for name, value in settings.items()}
    name = "paper" if deadline_factor == 2 else f"paper_k{deadline_factor}"
    return made_from(name, f"the paper's way, K = {deadline_factor}", "mayfly", own)


def profiled(output: Path, every: str) -> Variant:
    command = (str(mayfly()), "profile", "-o", str(output), "--every", every, "--json", "--")
    own = online()
    return replace(own, name="profile", prefix=command, settings={"MAYFLY_HEAP_LIB": str(own.library)})


def traced(output: Path) -> Variant:
    return replace(online(), name="trace", settings={"MAYFLY_HEAP_TRACE": str(output)})


def mayfly() -> Path:
    if not MAYFLY.exists() or not os.access(MAYFLY, os.X_OK):
        raise BenchError(f"{MAYFLY}: not there; build it with 'make build'")
    return MAYFLY
