"""A server under measurement: started on an allocator, sampled while it serves, always stopped."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

from bench.heap.allocators import Allocator
from bench.heap.machine import cpu_ms, maps_name, memory_of, peak_rss_kib, proc_kib
from bench.heap.measure import pages_for
from bench.outcome import BenchError
from bench.processes import end, last_words

SAMPLE_S = 0.1
# The kernel walks all pages for it, with a lock that page faults of the server want.
RANGES_EVERY = 10
START_S = 60


def tool(name: str) -> str:
    """The path of an installed program, or a BenchError with the command that installs it."""
    found = shutil.which(name)
    if not found:
        raise BenchError(f"{name} is not installed: run 'make setup' (bench/packages.txt names its package)")
    return found


class Server:
    """The running process, its Unix socket, and its memory over time as (seconds since start, RSS in KiB)."""

    peak_ranges_kib = 0.0

    def __init__(self, process: subprocess.Popen | None, path: Path, settings: Mapping[str, str]):
        self.process = process
        self.settings = settings
        self.socket_path = path
        self.samples: list[tuple[float, int]] = []
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with contextlib.suppress(OSError):
                self.look()

    def look(self) -> None:
        (rss,) = proc_kib(f"/proc/{self.pid}/status", "VmRSS")
        self.samples.append((self.seconds(), rss))
        if len(self.samples) % RANGES_EVERY == 0:
            self.memory()

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def memory(self) -> dict[str, float]:
        now = memory_of(self.pid)
        self.peak_ranges_kib = max(self.peak_ranges_kib, now["ranges_kib"])
        return now

    def cpu_ms(self) -> float:
        return cpu_ms(self.pid)

    def peak_rss_kib(self) -> int:
        return max([peak_rss_kib(self.pid), *(rss for _, rss in self.samples)])

    def peaks(self) -> dict[str, float]:
        """The peak of ranges is that of the samples: the kernel keeps none."""
        return {"peak_rss_kib": self.peak_rss_kib(), "peak_ranges_kib": self.peak_ranges_kib}

    def stop_sampling(self) -> None:
        self._stop.set()
        self._sampler.join()

    def stop(self) -> None:
        self.stop_sampling()
        end(self.process)


@contextlib.contextmanager
def explained(process: subprocess.Popen, stderr: IO[str]) -> Iterator[None]:
    """Adds the state of the process and its last output to an error of the body."""
    try:
        yield
    except (BenchError, OSError, ValueError) as error:
        stderr.seek(0)
        output = last_words(stderr.read(), "nothing")
        ended = process.poll()
        state = "still running" if ended is None else f"ended with {ended}"
        raise BenchError(f"{error} (it is {state}; its last output: {output})") from error


def socket_answers(server: Server) -> bool:
    """Whether the server's Unix socket accepts connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(server.socket_path))
    return True


@contextlib.contextmanager
def serving(
    allocator: Allocator,
    command: list[str],
    folder: str,
    ready: Callable[[Server], bool] = socket_answers,
    beside: Sequence[Path] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Runs `command` (in which '{socket}' becomes a Unix socket's path) until the body ends.

    `ready` returns whether the server answers; an OSError means no. Libraries `beside` the allocator's are
    preloaded after it; `settings` are added to the server's environment. A server that dies under the load
    fails the run with its last output.
    """
    path = Path(folder) / "socket"
    with open(Path(folder) / "stderr", "w+") as stderr, pages_for(allocator):
        process = subprocess.Popen(
            [part.replace("{socket}", str(path)) for part in command],
            env=allocator.environment(beside) | settings,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )
        server = Server(process, path, settings)
        try:
            with explained(process, stderr):
                wait_until(server, ready)
                if not maps_name(process.pid, allocator.library):
                    raise BenchError(f"{command[0]} does not have {allocator.library} loaded")
                yield server
                if process.poll() is not None:
                    raise BenchError("the server ended during the load")
        finally:
            server.stop()


def wait_until(
    server: Server, ready: Callable[[Server], bool] = lambda server: server.socket_path.exists()
) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise BenchError("the server did not start")
        with contextlib.suppress(OSError):
            if ready(server):
                return
        time.sleep(0.05)
    raise BenchError(f"no answer in {START_S} s")


def scratch_folder() -> tempfile.TemporaryDirectory:
    """A folder for one run's socket and output; short-named, as a Unix socket's path must be."""
    return tempfile.TemporaryDirectory(prefix="bench")
