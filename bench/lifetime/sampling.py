"""The cost of sampling (LLAMA §9.3): processor time of a Redis server on Mayfly's heap under one load, and
the time of the load, by which its requests take longer. It is not sampled, sampled from its start at the
default rate, or a profiler is attached while the load runs."""

import argparse
import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.heap.allocators import library
from bench.heap.beside_glibc import COMMANDS
from bench.heap.machine import cpu_ms
from bench.heap.redis import server_command
from bench.heap.server import scratch_folder, tool
from bench.lifetime.variants import mayfly
from bench.outcome import BenchError, Shown, at_most, figure, say, table
from bench.processes import ask, started

NAME = "sampling"
ABOUT = "CPU and requests of a Redis server that is sampled; two minutes a round"
UNSAMPLED, SAMPLED, ATTACHED = "unsampled", "sampled", "attached"
MOST = {SAMPLED: 1.03, ATTACHED: 1.01}
REQUESTS = {True: 5_000, False: 200_000}
START_S = 30
# Longer than the load: sampling fills the first half of the time.
ATTACHED_S = 600


def measure(options: argparse.Namespace) -> dict:
    """Flat keys: `sampling.WAY.cpu_ms`, `.ratio` to an unsampled server in the same round, and its range;
    `.load_ms` and `.load_ratio`, of the load, likewise."""
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in (UNSAMPLED, SAMPLED, ATTACHED)}
    for number in range(options.rounds):
        for way, times in runs.items():
            times.append(under_load(way, REQUESTS[options.quick]))
            cpu, load = times[-1]
            say(f"{NAME} {number + 1}/{options.rounds} {way}: {cpu / 1000:.2f} s of CPU in {load / 1000:.2f}")
    return flat_of(runs)


def flat_of(runs: dict[str, list[tuple[float, float]]]) -> dict:
    flat: dict[str, float] = {}
    for way, times in runs.items():
        flat[f"{NAME}.{way}.rounds"] = len(times)
        for place, what, ratio in ((0, "cpu_ms", "ratio"), (1, "load_ms", "load_ratio")):
            pairs = zip(times, runs[UNSAMPLED], strict=True)
            ratios = [one[place] / of_none[place] for one, of_none in pairs]
            flat[f"{NAME}.{way}.{what}"] = median(one[place] for one in times)
            for key, value in (("", median(ratios)), ("_min", min(ratios)), ("_max", max(ratios))):
                flat[f"{NAME}.{way}.{ratio}{key}"] = round(value, 4)
    return flat


def under_load(way: str, requests: int) -> tuple[float, float]:
    """The server's processor time under the load, without its start, and the time of the load, both in ms."""
    with scratch_folder() as name:
        folder = Path(name)
        path = folder / "socket"
        verb = ["profile", "-o", folder / "profile", "--json"] if way == SAMPLED else ["run"]
        server = [part.replace("{socket}", str(path)) for part in server_command()]
        command = ["env", f"MAYFLY_HEAP_LIB={library('mayfly', {})}", mayfly(), *verb, "--", *server]
        with started(command, "redis-server", folder / "log", lambda: answers(path), START_S) as (process, _):
            pid = child_of(process.pid) if way == SAMPLED else process.pid
            load = [tool("redis-benchmark"), "-q", "-s", path, "-t", COMMANDS, "-d", "100"]
            with attached(pid, folder) if way == ATTACHED else contextlib.nullcontext():
                before, begun = cpu_ms(pid), time.monotonic()
                ask([*load, "-P", "8", "-r", "100000", "-n", str(requests)], "redis-benchmark")
                return cpu_ms(pid) - before, 1000 * (time.monotonic() - begun)


@contextlib.contextmanager
def attached(pid: int, folder: Path) -> Iterator[None]:
    command = [
        mayfly(),
        "profile",
        "--pid",
        pid,
        "--seconds",
        ATTACHED_S,
        "--json",
        "-o",
        folder / "attached",
    ]
    with (folder / "profiler").open("w+") as log:
        profiler = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        try:
            yield
        finally:
            profiler.send_signal(signal.SIGINT)
            status = profiler.wait(60)
        if status:
            log.seek(0)
            raise BenchError(f"mayfly profile --pid: {log.read().strip()[-200:]}")


def answers(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return True
    return False


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if len(children) != 1:
        raise BenchError(f"mayfly profile has {len(children)} children, not the server alone")
    return int(children[0])


def shown(flat: dict) -> list[Shown]:
    found = ((way, flat.get(f"{NAME}.{way}.ratio")) for way in MOST)
    return [
        at_most(f"CPU of a server {way}, by that of one that is not", MOST[way], ratio, "x")
        for way, ratio in found
        if ratio
    ]


def print_all(flat: dict) -> None:
    print(f"\nThe cost of sampling: {ABOUT}")
    rows = [["", "CPU s", "ratio", "lowest", "highest", "load s", "ratio", "lowest", "highest"]]
    for way in (UNSAMPLED, SAMPLED, ATTACHED):
        of = lambda key, way=way: flat.get(f"{NAME}.{way}.{key}")  # noqa: E731
        row = [way]
        for what, ratio in (("cpu_ms", "ratio"), ("load_ms", "load_ratio")):
            row.append(figure((of(what) or 0) / 1000, 2))
            row += [figure(of(f"{ratio}{end}"), 3) for end in ("", "_min", "_max")]
        rows.append(row)
    table(rows)
