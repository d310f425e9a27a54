"""Redis in a container, as Debian has it, under the load of bench/heap/demo: filled, most of it deleted, and
that again.

Every value that must be there at the end is compared. Redis turns huge pages off for itself unless it is told
not to; both ways are measured, since an operator may leave its settings as they are.
"""

import threading
import time
from dataclasses import replace

from podman4 import Podman

import node
from bench.heap import machine, redis

VARIANTS = {
    "plain": ([], []),
    "heap": (["heap=online"], []),
    "heap_huge": (["heap=online"], ["--disable-thp", "no"]),
}
CONNECTIONS = 400  # the container may have 1,024 open files


class Contained:
    """The server in its container, as the load of bench/heap wants it."""

    def __init__(self, process: int, socket_path):
        self.process, self.socket_path, self.started = process, socket_path, time.monotonic()
        self.peak_kib, self._end = 0, threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        while not self._end.wait(0.1):
            self.peak_kib = max(self.peak_kib, machine.peak_rss_kib(self.process))

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def memory(self) -> dict[str, float]:
        return machine.memory_of(self.process)

    def resident_huge_ranges(self) -> int:
        return machine.resident_huge_ranges(self.process)

    def stop(self) -> None:
        self._end.set()
        self._sampler.join()


def measure(podman: Podman, image: str, variant: str, quick: bool) -> dict:
    """Memory and speed of one run."""
    devices, options = VARIANTS[variant]
    scale = replace(redis.QUICK if quick else redis.DEMO, connections=CONNECTIONS)
    with node.scratch() as folder:
        folder.chmod(0o777)
        words = [
            "/usr/bin/redis-server",
            "--port",
            "0",
            "--unixsocket",
            "/socket/redis",
            "--unixsocketperm",
            "777",
        ]
        words += ["--save", "", "--appendonly", "no", *options]
        with podman.running(image, *words, devices=devices, volumes=[f"{folder}:/socket"]) as (name, process):
            node.until((folder / "redis").exists, lambda: podman("logs", name))
            assert bool(devices) == machine.maps_name(process, "libmayfly_heap.so")
            server = Contained(process, folder / "redis")
            try:
                load = redis.Load(server, scale)
                load.everything()
            finally:
                server.stop()
    numbers, mib = load.numbers, 1024
    return {
        "set_per_s": numbers["set_per_s"],
        "lrange_100_per_s": numbers["lrange_100_per_s"],
        "peak_mib": server.peak_kib / mib,
        "deleted_mib": numbers["deleted.rss_kib"] / mib,
        "memory_mib": numbers["rss_kib"] / mib,
        "huge_mib": numbers["anon_huge_kib"] / mib,
        "live_mib": numbers["used_memory_bytes"] / mib / mib,
        "keys": numbers["keys"],
    }
