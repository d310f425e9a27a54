"""A server under measurement: started on an allocator, sampled while it serves, stopped whatever happens."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.heap.allocators import Allocator
from bench.heap.machine import maps_name, memory_of, peak_rss_kib, resident_huge_ranges
from bench.heap.measure import RunFailed, pages_for
from bench.outcome import BenchError

SAMPLE_S = 0.1


def tool(name: str) -> str:
    """The path of an installed program, or a BenchError that says how to get it."""
    found = shutil.which(name)
    if not found:
        raise BenchError(f"{name} is not installed: run 'make setup' (bench/packages.txt names its package)")
    return found


class Server:
    """The running process, its Unix socket, and its memory over time as (seconds since start, RSS in KiB)."""

    def __init__(self, process: subprocess.Popen, path: Path):
        self.process = process
        self.socket_path = path
        self.samples: list[tuple[float, int]] = []
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with contextlib.suppress(OSError):
                self.samples.append((time.monotonic() - self.started, int(self.memory()["rss_kib"])))

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def memory(self) -> dict[str, float]:
        return memory_of(self.process.pid)

    def resident_huge_ranges(self) -> int:
        return resident_huge_ranges(self.process.pid)

    def peak_rss_kib(self) -> int:
        return max([peak_rss_kib(self.process.pid), *(rss for _, rss in self.samples)])

    def stop(self) -> None:
        self._stop.set()
        self._sampler.join()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def serving(allocator: Allocator, command: list[str], folder: str) -> Iterator[Server]:
    """Runs `command` (in which '{socket}' becomes a Unix socket's path) until the body ends.

    A server that dies under the load fails the run with its last words.
    """
    path = Path(folder) / "socket"
    with open(Path(folder) / "stderr", "w+") as stderr, pages_for(allocator):
        process = subprocess.Popen(
            [part.replace("{socket}", str(path)) for part in command],
            env=allocator.environment(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )
        server = Server(process, path)
        try:
            wait_for_socket(server)
            if not maps_name(process.pid, allocator.library):
                raise RunFailed(f"{command[0]} does not have {allocator.library} loaded")
            yield server
            if process.poll() is not None:
                raise RunFailed("the server ended during the load")
        except (RunFailed, OSError, ValueError) as error:
            stderr.seek(0)
            said = [line for line in stderr.read().strip().splitlines() if line]
            ended = process.poll()
            state = "still running" if ended is None else f"ended with {ended}"
            raise RunFailed(
                f"{error} (server {state}; it said last: {said[-1] if said else 'nothing'})"
            ) from error
        finally:
            server.stop()


def wait_for_socket(server: Server) -> None:
    for _ in range(200):
        if server.process.poll() is not None:
            raise RunFailed("the server did not start")
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(server.socket_path))
            return
        time.sleep(0.05)
    raise RunFailed(f"no answer on {server.socket_path} in 10 s")


def scratch_folder() -> tempfile.TemporaryDirectory:
    """A folder for one run's socket and output; short-named, as a Unix socket's path must be."""
    return tempfile.TemporaryDirectory(prefix="bench")
