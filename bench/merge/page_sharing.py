"""Fig. 1: how much memory one function's instances could share, page by page, by /proc/PID/pagemap and mem.

Two or more instances of the same function, run on different inputs, are stopped, and every present page is
examined (UPM §III). A page is one of:
  shared               one frame, mapped by several instances (a library's page cache, a program's text)
  identical_file       a page of a file's mapping with its own frame, and the same bytes in another instance
  identical_anonymous  an anonymous page, likewise
  volatile             bytes that no other instance has

Needs root, to read frame numbers.
"""

import hashlib
import os
import signal
from collections import defaultdict
from dataclasses import dataclass, field

import numpy

from bench.merge.machine import PAGE
from bench.outcome import BenchError

PRESENT, FRAME = numpy.uint64(1 << 63), numpy.uint64((1 << 55) - 1)
CHUNK = 1024  # sub-page sharing is measured in quarters of a page
ZERO = hashlib.blake2b(bytes(PAGE), digest_size=16).digest()


@dataclass
class Snapshot:
    """Every present page of a process: its frame, whether it maps a file, and its bytes' digest."""

    frames: list[int] = field(default_factory=list)
    of_file: list[bool] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    quarters: list[tuple[bytes, ...]] = field(default_factory=list)


def mappings(pid: int):
    """(first address, end, has a file) of every mapping with pages to compare; the kernel's own are left
    out."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            name = words[5].strip() if len(words) > 5 else ""
            if name.startswith(("[vvar", "[vdso", "[vsyscall")):
                continue
            first, end = (int(part, 16) for part in words[0].split("-"))
            yield first, end, name.startswith("/") and not name.startswith("/memfd:")


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def take(pid: int) -> Snapshot:
    taken = Snapshot()
    with open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for first, end, of_file in mappings(pid):
            pagemap.seek(first // PAGE * 8)
            entries = numpy.frombuffer(pagemap.read((end - first) // PAGE * 8), dtype=numpy.uint64)
            for index in numpy.flatnonzero(entries & PRESENT):
                frame = int(entries[index] & FRAME)
                if not frame:
                    raise BenchError(
                        f"/proc/{pid}/pagemap: shows no frame numbers: the sharing study needs root"
                    )
                try:
                    memory.seek(first + int(index) * PAGE)
                    page = memory.read(PAGE)
                except OSError:  # a device's memory
                    continue
                taken.frames.append(frame)
                taken.of_file.append(of_file)
                taken.digests.append(digest(page))
                taken.quarters.append(tuple(digest(page[at : at + CHUNK]) for at in range(0, PAGE, CHUNK)))
    return taken


def stopped_snapshots(pids: list[int]) -> list[Snapshot]:
    """Stops all instances first, so that they are compared at one moment."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        return [take(pid) for pid in pids]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def owners(snapshots: list[Snapshot], of: str) -> dict:
    """Frame, digest or quarter's digest to the set of instances that have it, as a bit mask."""
    found: dict = defaultdict(int)
    for number, snapshot in enumerate(snapshots):
        for value in getattr(snapshot, of):
            for one in value if of == "quarters" else (value,):
                found[one] |= 1 << number
    return found


def classify(snapshots: list[Snapshot]) -> dict[str, float]:
    """MiB an instance (mean over the instances), by class, and the shares of pages that are partly
    identical."""
    by_frame, by_digest, by_quarter = (owners(snapshots, of) for of in ("frames", "digests", "quarters"))
    pages: dict[str, int] = defaultdict(int)
    for number, snapshot in enumerate(snapshots):
        others = ~(1 << number)
        for frame, of_file, page, quarters in zip(
            snapshot.frames, snapshot.of_file, snapshot.digests, snapshot.quarters, strict=True
        ):
            pages["all"] += 1
            if by_frame[frame] & others:
                pages["shared"] += 1
            elif by_digest[page] & others:
                pages["identical_file" if of_file else "identical_anonymous"] += 1
                pages["identical_zero"] += page == ZERO
            else:
                pages["volatile"] += 1
                alike = sum(bool(by_quarter[quarter] & others) for quarter in quarters)
                pages["half_identical"] += alike >= 2
                pages["three_quarters_identical"] += alike >= 3
    each = len(snapshots)
    numbers = {}
    for name in ("all", "shared", "identical_anonymous", "identical_file", "identical_zero", "volatile"):
        numbers[f"{name}_mib"] = pages[name] * PAGE / each / (1 << 20)
        if name != "all":
            numbers[f"{name}_percent"] = 100 * pages[name] / pages["all"]
    for name in ("half_identical", "three_quarters_identical"):
        numbers[f"{name}_percent"] = 100 * pages[name] / pages["all"]
    return numbers
