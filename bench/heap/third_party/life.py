"""Drives a third-party server through load, peak and quiet; measures its memory on the way and at the end.

The work is a number of requests and not a time, so every allocator does the same, however busy the machine
is.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.compiled import compiled
from bench.heap.allocators import LIBRARY_FOLDERS, Allocator
from bench.heap.machine import pss_kib
from bench.heap.measure import Numbers
from bench.heap.server import Server, serving
from bench.outcome import BenchError

QUIET_S = 10
LIVE_VARIABLE = "LIVE_BYTES_FIFO"
PROBE = Path(__file__).parent / "live.c"

Phase = tuple[str, Callable[[], None]]


def probe() -> Path:
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    return compiled("live_bytes.so", command, PROBE)


def preloaded_after(allocator: Allocator) -> list[Path]:
    """What is preloaded after the allocator: for glibc the C++ library with its `new`, then the probe.

    A program that is linked to another allocator would have that one's `new` otherwise, and glibc's free.
    """
    libraries = [probe()]
    if allocator.base == "glibc":
        names = (folder / "libstdc++.so.6" for folder in LIBRARY_FOLDERS)
        libraries[:0] = [path for path in names if path.exists()][:1]
    return libraries


@contextlib.contextmanager
def server_with_probe(
    allocator: Allocator, command: list[str], folder: str, ready: Callable[[Server], bool]
) -> Iterator[Server]:
    """Runs the server on the allocator, with the probe that counts live bytes."""
    fifo = Path(folder) / "live"
    for end in ("ask", "answer"):
        os.mkfifo(f"{fifo}.{end}")
    settings = {LIVE_VARIABLE: str(fifo)}
    with serving(allocator, command, folder, ready, preloaded_after(allocator), settings) as server:
        yield server


def live_bytes(server: Server, within_s: float = 5) -> int | None:
    """The live bytes that the server's allocator reports; None if it cannot."""
    fifo = server.settings[LIVE_VARIABLE]
    with contextlib.suppress(OSError):
        os.close(os.open(f"{fifo}.ask", os.O_WRONLY | os.O_NONBLOCK))
        answer = os.open(f"{fifo}.answer", os.O_RDONLY | os.O_NONBLOCK)
        try:
            deadline = time.monotonic() + within_s
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    if text := os.read(answer, 64):
                        return int(text) if int(text) >= 0 else None
                time.sleep(0.02)
        finally:
            os.close(answer)
    return None


def drive(server: Server, phases: Sequence[Phase], quiet_s: float = QUIET_S) -> Numbers:
    """Drives the server through the phases and then leaves it alone.

    `cpu_ms` is the server's processor time from the first phase to the end of the quiet: what an allocator
    does in the background counts. Without a prefix, memory is what is left after the quiet.
    """
    numbers: Numbers = {}
    began, at_start = time.monotonic(), server.cpu_ms()
    numbers["start.rss_kib"] = server.memory()["rss_kib"]
    for name, phase in phases:
        phase()
        numbers[f"{name}.rss_kib"] = server.memory()["rss_kib"]
    numbers["load_s"] = time.monotonic() - began
    live = live_bytes(server)
    if live is not None:
        numbers["loaded.live_kib"] = live / 1024
    time.sleep(quiet_s)
    numbers |= server.memory()
    numbers["pss_kib"] = pss_kib(server.process.pid)
    numbers["cpu_ms"] = server.cpu_ms() - at_start
    numbers |= server.peaks()
    numbers["threads"] = len(os.listdir(f"/proc/{server.process.pid}/task"))
    live = live_bytes(server)
    if live is not None:
        numbers["live_kib"] = live / 1024
    return numbers


def installed(path: str, package: str) -> str:
    if not Path(path).exists():
        raise BenchError(f"{path} is not there: run 'make setup' (bench/heap/packages.txt names {package})")
    return path
