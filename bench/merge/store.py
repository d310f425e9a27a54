"""The page store that the engine needs: `mayfly share` on a socket of its own, for the length of a
measurement or a test."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.merge.machine import LIBRARY, MAYFLY, MIB, cpu_s
from bench.outcome import BenchError
from bench.processes import started


@dataclass
class Store:
    pid: int
    socket: Path

    def environment(self) -> dict[str, str]:
        return {
            "MAYFLY_SHARE_SOCKET": str(self.socket),
            "MAYFLY_MERGE_LIBRARY": str(LIBRARY),
            "MAYFLY_MERGE_PATH": "engine",
        }

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def blocks_mib(self) -> float:
        """Memory that the store's segments occupy, mapped or not: PSS counts only mapped pages."""
        inodes = {}
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor).startswith("/memfd:"):
                    status = os.stat(descriptor)
                    inodes[status.st_ino] = status.st_blocks * 512
        return sum(inodes.values()) / MIB


@contextlib.contextmanager
def running(socket: Path | None = None, timeout_s: float = 120) -> Iterator[Store]:
    """Starts a store, waits for its socket, and ends it, which must succeed."""
    for path, what in ((MAYFLY, "the command"), (LIBRARY, "the library")):
        if not path.exists():
            raise BenchError(f"{path}: {what} is not built: run 'make build'")
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder:
        socket = socket or Path(folder) / "share.sock"
        command = [MAYFLY, "share", "--socket", socket]
        ready = socket.exists
        with started(command, "mayfly share", Path(folder) / "log", ready, timeout_s) as (process, _):
            yield Store(process.pid, socket)
