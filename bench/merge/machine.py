"""Paths in the repository, and readings of the kernel: memory of processes, CPU time, KSM's settings."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from bench.outcome import ROOT, BenchError

LIBRARY = Path(os.environ.get("MAYFLY_MERGE_LIBRARY") or ROOT / "target" / "release" / "libmayfly_merge.so")
MAYFLY = Path(os.environ.get("MAYFLY_COMMAND") or ROOT / "target" / "release" / "mayfly")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mayfly"
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
KSM = Path("/sys/kernel/mm/ksm")

# KSM's default, and its fastest: no sleep, and all pages in one scan. Its
# own advisor (advisor_mode scan-time) only ever slows it down to a target time, 200 s by default.
KSM_DEFAULT = {"sleep_millisecs": "20", "pages_to_scan": "100"}
KSM_BEST = {"sleep_millisecs": "0", "pages_to_scan": "100000"}


def kib_lines(path: str) -> dict[str, int]:
    """The 'Name:  123 kB' lines of a /proc file."""
    with open(path) as file:
        lines = (line.split() for line in file)
        return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}


def memory_of(pids: Iterable[int]) -> dict[str, float]:
    """Memory of processes together, in MiB: PSS, RSS, private, anonymous, mapped from the store, page
    tables."""
    total = dict.fromkeys(("pss", "rss", "private", "anonymous", "pss_store", "page_tables"), 0.0)
    for pid in pids:
        rollup = kib_lines(f"/proc/{pid}/smaps_rollup")
        total["pss"] += rollup["Pss"] / 1024
        total["rss"] += rollup["Rss"] / 1024
        total["private"] += (rollup["Private_Clean"] + rollup["Private_Dirty"]) / 1024
        total["anonymous"] += rollup["Anonymous"] / 1024
        total["pss_store"] += rollup["Pss_Shmem"] / 1024
        total["page_tables"] += kib_lines(f"/proc/{pid}/status").get("VmPTE", 0) / 1024
    return total


def available_mib() -> float:
    """Memory available to new programs: the figure that the paper takes from `free -m`."""
    return kib_lines("/proc/meminfo")["MemAvailable"] / 1024


def cpu_s(pid: int) -> float:
    """CPU time that all threads of a process have used, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def mappings_of(pid: int) -> int:
    with open(f"/proc/{pid}/maps") as maps:
        return sum(1 for _ in maps)


def ksmd() -> int:
    """The process id of KSM's kernel thread."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text() == "ksmd\n":
                return int(path.parent.name)
    raise BenchError("no ksmd: this kernel is built without KSM")


def ksm_merged_pages(pids: Iterable[int]) -> int:
    """Pages of these processes, and no others, that KSM has merged."""
    merged = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/ksm_stat").read_text().splitlines():
            if line.startswith("ksm_merging_pages"):
                merged += int(line.split()[1])
    return merged


def can_set_ksm() -> bool:
    return os.access(KSM / "run", os.W_OK)


@contextlib.contextmanager
def ksm_running(settings: dict[str, str]):
    """Runs KSM with these settings while the body runs, and restores the old ones, after an error too. Merged
    pages are freed with their processes."""
    before = {}
    try:
        for name, value in (settings | {"run": "1"}).items():
            text = (KSM / name).read_text().strip()
            # Of a choice, the chosen is in brackets.
            before[name] = text.split("[")[1].split("]")[0] if "[" in text else text
            (KSM / name).write_text(value)
        yield
    finally:
        for name, value in before.items():
            (KSM / name).write_text(value)


def take_and_return(mib: float) -> None:
    """Touches free memory and frees it at once. A virtual machine's host may reclaim the guest's free memory
    (free page reporting, after two seconds). Touching that again costs twenty times as much as other memory,
    and is the host's cost and no method's."""
    room = mmap.mmap(-1, int(mib) * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    ctypes.memset(address, 1, int(mib) * MIB)
    room.madvise(mmap.MADV_DONTNEED)
