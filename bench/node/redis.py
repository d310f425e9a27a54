"""Redis in a container, as Debian has it, under the load of bench/heap/demo: filled, most of it deleted, and
both again.

Every value that must exist at the end is compared. Redis turns huge pages off for itself unless its settings
keep them; both ways are measured, since an operator may leave its settings as they are.
"""

from dataclasses import replace
from pathlib import Path

from podman4 import Podman

import node
from bench.heap import machine, redis
from bench.heap.server import Server

VARIANTS = {
    "plain": ([], []),
    "heap": (["heap=online"], []),
    "heap_huge": (["heap=online"], ["--disable-thp", "no"]),
}
CONNECTIONS = 400  # the container may have 1,024 open files


class Contained(Server):
    """The server in its container, which ends it."""

    def __init__(self, pid: int, socket_path: Path):
        self._pid = pid
        super().__init__(None, socket_path, {})

    @property
    def pid(self) -> int:
        return self._pid


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
                peak_kib = server.peak_rss_kib()
            finally:
                server.stop_sampling()
    numbers, mib = load.numbers, 1024
    return {
        "set_per_s": numbers["set_per_s"],
        "lrange_100_per_s": numbers["lrange_100_per_s"],
        "peak_mib": peak_kib / mib,
        "deleted_mib": numbers["deleted.rss_kib"] / mib,
        "memory_mib": numbers["rss_kib"] / mib,
        "huge_mib": numbers["anon_huge_kib"] / mib,
        "live_mib": numbers["used_memory_bytes"] / mib / mib,
        "keys": numbers["keys"],
    }
