"""A program of a workload while it runs: started on a variant, its memory sampled, its output read."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import memory
from bench.heap.machine import maps_name
from bench.heap.measure import pages_for
from bench.heap.server import Server, explained
from bench.lifetime.variants import Variant
from bench.outcome import BenchError

MIB = 1 << 20


@dataclass
class Memory:
    """Memory over time in both units (see bench/memory.py) and live bytes, as (seconds since the start, MiB),
    and when each phase began."""

    resident: list[tuple[float, float]] = field(default_factory=list)
    ranges: list[tuple[float, float]] = field(default_factory=list)
    live: list[tuple[float, float]] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True)
class AtEnd:
    """MiB at the steady state."""

    resident: float
    ranges: float
    huge: float
    live: float


class Program(Server):
    def __init__(self, variant: Variant, process: subprocess.Popen, folder: Path):
        self.variant, self.folder = variant, folder
        self.memory_over_time = Memory()
        self.heap: dict[str, float] = {}
        super().__init__(process, folder / "socket", {})

    @property
    def pid(self) -> int:
        """The PID of the program's own process, from its watcher."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.folder / "watch").read_text().splitlines()[0])
        return self.process.pid

    def look(self) -> None:
        now, at = memory.of(self.pid), self.seconds()
        self.memory_over_time.resident.append((at, now.resident / MIB))
        self.memory_over_time.ranges.append((at, now.ranges / MIB))

    def phase(self, name: str) -> None:
        self.memory_over_time.phases.append((self.seconds(), name))

    def live(self) -> list[tuple[float, float]]:
        """The live bytes that the allocator reported, since the start."""
        samples: list[tuple[float, float]] = []
        if self.variant.prefix:
            return samples
        lines = (self.folder / "watch").read_text().splitlines()[1:]
        for line in lines:
            words = line.split()
            if len(words) == 2:
                samples.append((int(words[0]) / 1000 - self.started, int(words[1]) / MIB))
        return samples

    def rest(self, settle_s: float) -> AtEnd:
        """Memory after a pause: the steady state."""
        time.sleep(settle_s)
        now = sorted((memory.of(self.pid) for _ in range(3)), key=lambda one: one.resident)[1]
        live = self.live()
        resident, ranges, huge = (part / MIB for part in (now.resident, now.ranges, now.huge))
        return AtEnd(resident, ranges, huge, live[-1][1] if live else 0.0)

    def stop(self) -> None:
        """Ends the program with SIGTERM, as its users do, so that it exits normally."""
        self.stop_sampling()
        with contextlib.suppress(OSError):
            self.memory_over_time.live = self.live()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError, ValueError):
            self.heap = json.loads((self.folder / "statistics").read_text())


@contextlib.contextmanager
def running(variant: Variant, command: list, folder: Path, **options) -> Iterator[Program]:
    """Runs `command` on a variant until the body ends. When the program fails, so does the run."""
    full = [*variant.prefix, *map(str, command)]
    with (folder / "stderr").open("w+") as stderr, pages_for(variant):
        process = subprocess.Popen(
            full,
            env=variant.watched(folder),
            cwd=folder,
            stderr=stderr,
            **({"stdin": subprocess.DEVNULL, "stdout": stderr} | options),
        )
        program = Program(variant, process, folder)
        try:
            with explained(process, stderr):
                yield program
                program.stop()
                if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
                    raise BenchError(f"{Path(command[0]).name} ended with {process.returncode}")
        finally:
            program.stop()


def complain_about_allocator(program: Program) -> None:
    if not program.variant.prefix and not maps_name(program.pid, program.variant.library):
        raise BenchError(f"the program does not have {program.variant.library} loaded")


def follow(program: Program, speaker: subprocess.Popen, settle_s: float) -> tuple[dict, AtEnd]:
    """Reads the output of a load generator (or of a program that needs none): phases, the moment at which to
    measure memory, and at the end one JSON line. Returns that, and memory at the moment."""
    at_end, report = AtEnd(0, 0, 0, 0), None
    assert speaker.stdout and speaker.stdin
    for line in speaker.stdout:
        kind, _, rest = line.strip().partition(" ")
        if kind == "phase":
            if not program.memory_over_time.phases:
                complain_about_allocator(program)
            program.phase(rest)
        elif kind == "moment":
            at_end = program.rest(settle_s)
            speaker.stdin.write("\n")
            speaker.stdin.flush()
        elif line.startswith("{"):
            report = json.loads(line)
    if report is None:
        raise BenchError("the load ended without its report")
    return report, at_end
