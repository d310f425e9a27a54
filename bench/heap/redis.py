"""Redis under load: 1000-byte values over up to 5,000 connections; fill, serve, delete most, fill again.

The load at full speed is redis-benchmark's (LLAMA §9 uses the same). Our own client deletes, writes the
second fill and checks every value: the data is known and must come back unchanged.
"""

import csv
import io
import random
import resource
import subprocess
import time
import zlib
from dataclasses import dataclass

from bench.heap import redis_program
from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.redis_protocol import Client
from bench.heap.server import Server, scratch_folder, serving, tool
from bench.outcome import BenchError

VALUE_BYTES = 1000
KEPT_OF_FIRST, KEPT_OF_SECOND = 10, 4  # one key in this many survives the deletion


@dataclass(frozen=True)
class Scale:
    connections: int
    sets: int  # requests of the first fill, over as many random keys
    gets: int  # 0: none (opening 5,000 connections takes redis-benchmark 4 s, which are not counted)
    ranges: int  # LRANGE requests of 100 values each: 100 KB of answer waiting on every connection
    second_keys: int
    settle_s: float


FULL = Scale(connections=5000, sets=250_000, gets=0, ranges=20_000, second_keys=60_000, settle_s=2)
DEMO = Scale(connections=5000, sets=250_000, gets=150_000, ranges=20_000, second_keys=60_000, settle_s=2)
QUICK = Scale(connections=200, sets=30_000, gets=20_000, ranges=2_000, second_keys=8_000, settle_s=0.3)


def server_command() -> list[str]:
    """Redis without a file and without a port; {socket} is where it listens."""
    kept = ["--port", "0", "--unixsocket", "{socket}", "--save", "", "--appendonly", "no"]
    # Redis disables huge pages for itself if all programs have them; here they are measured.
    more = ["--maxclients", "10000", "--loglevel", "warning", "--disable-thp", "no"]
    return [str(redis_program.server()), *kept, *more]


def run(
    allocator: Allocator, scale: Scale
) -> tuple[Numbers, list[tuple[float, int]], list[tuple[float, str]]]:
    """One run: its numbers, RSS over time (seconds, KiB), and when each phase began."""
    command = server_command()
    # jemalloc's background thread is part of its best settings; no other uses it.
    command += ["--jemalloc-bg-thread", "yes" if allocator.base == "jemalloc" else "no"]
    with scratch_folder() as folder, serving(allocator, command, folder) as server:
        load = Load(server, scale)
        load.everything()
        numbers = load.numbers | server.peaks()
    return numbers, server.samples, load.phases


class Load:
    def __init__(self, server: Server, scale: Scale):
        self.server, self.scale = server, scale
        self.client = Client(server.socket_path)
        self.numbers: Numbers = {}
        self.benchmark_value = b""
        self.phases: list[tuple[float, str]] = []
        self.random = random.Random(11)
        self.connections = min(scale.connections, usable_connections())
        self.numbers["connections"] = self.connections

    def everything(self) -> None:
        self.phase("idle")
        self.note("idle")
        self.phase("fill")
        self.benchmark("set", self.scale.sets, "-r", str(self.scale.sets), "-t", "set")
        self.note("full")
        self.phase("serve")
        if self.scale.gets:
            self.benchmark("get", self.scale.gets, "-r", str(self.scale.sets), "-t", "get")
        self.client.pipeline(("LPUSH", "list", b"l" * VALUE_BYTES) for _ in range(100))
        self.benchmark("lrange_100", self.scale.ranges, "LRANGE", "list", "0", "99")
        self.phase("delete most")
        first = self.delete_most_of_first()
        self.note("deleted")
        self.phase("fill again")
        second = self.fill_again()
        self.phase("delete")
        second = self.delete_most_of_second(second)
        self.phase("settle")
        self.note("steady")
        self.check(first, second)
        self.client.close()

    def phase(self, name: str) -> None:
        self.phases.append((self.server.seconds(), name))

    def note(self, moment: str) -> None:
        """Memory after a short pause, with the bytes that Redis counts. 'steady' is the one compared."""
        time.sleep(self.scale.settle_s if moment == "steady" else self.scale.settle_s / 2)
        used = self.client.info("used_memory")
        prefix = "" if moment == "steady" else f"{moment}."
        for name, value in self.server.memory().items():
            self.numbers[prefix + name] = value
        self.numbers[prefix + "used_memory_bytes"] = used

    def benchmark(self, test: str, requests: int, *what: str) -> None:
        """Runs a test of redis-benchmark over all connections; `what`: its options or the command to send."""
        command = [tool("redis-benchmark"), "-s", str(self.server.socket_path), "-c", str(self.connections)]
        command += ["-n", str(requests), "-d", str(VALUE_BYTES), "--csv", *what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        rows = [row for row in csv.reader(io.StringIO(done.stdout)) if len(row) > 1 and row[0] != "test"]
        if done.returncode or len(rows) != 1:
            raise BenchError(f"redis-benchmark, {test}: {(done.stderr or done.stdout).strip()[-200:]}")
        rate = float(rows[0][1])
        self.numbers[f"{test}_per_s"] = rate
        self.numbers["time_ms"] = self.numbers.get("time_ms", 0) + requests / rate * 1000

    def delete_most_of_first(self) -> list[bytes]:
        """Deletes nine in ten of redis-benchmark's keys, in random order; returns those that must be left."""
        keys = [b"key:%012d" % i for i in range(self.scale.sets)]
        kept = set(self.random.sample(range(self.scale.sets), self.scale.sets // KEPT_OF_FIRST))
        deleted = [key for i, key in enumerate(keys) if i not in kept]
        self.random.shuffle(deleted)
        order = sorted(kept)
        there = self.client.pipeline(("EXISTS", keys[i]) for i in order)
        first = [keys[i] for i, exists in zip(order, there, strict=True) if exists]
        # redis-benchmark writes one and the same value to all keys; read before anything is freed.
        (self.benchmark_value,) = self.client.pipeline([("GET", first[0])])
        if len(self.benchmark_value) != VALUE_BYTES:
            raise BenchError(f"{first[0].decode()} has {len(self.benchmark_value)} bytes, not {VALUE_BYTES}")
        self.client.pipeline(("DEL", key) for key in deleted)
        self.client.pipeline([("DEL", "list")])
        return first

    def fill_again(self) -> dict[bytes, bytes]:
        """Values of other sizes than before, from 100 to 4,000 bytes."""
        values = {
            b"again:%d" % i: value_of(i, 100 + self.random.randrange(3900))
            for i in range(self.scale.second_keys)
        }
        start = time.monotonic()
        answers = self.client.pipeline(("SET", key, value) for key, value in values.items())
        self.numbers["second_set_per_s"] = len(values) / (time.monotonic() - start)
        if any(answer != b"OK" for answer in answers):
            raise BenchError("a SET of the second fill was not answered OK")
        return values

    def delete_most_of_second(self, values: dict[bytes, bytes]) -> dict[bytes, bytes]:
        kept = set(self.random.sample(sorted(values), len(values) // KEPT_OF_SECOND))
        deleted = [key for key in values if key not in kept]
        self.random.shuffle(deleted)
        if sum(self.client.pipeline(("DEL", key) for key in deleted)) != len(deleted):
            raise BenchError("keys of the second fill were missing")
        return {key: values[key] for key in kept}

    def check(self, first: list[bytes], second: dict[bytes, bytes]) -> None:
        """Every key that must be there has its value, and no other key is there."""
        for key, value in zip(first, self.client.pipeline(("GET", key) for key in first), strict=True):
            if value != self.benchmark_value:
                raise BenchError(f"{key.decode()}: the value came back changed")
        answers = self.client.pipeline(("GET", key) for key in second)
        for (key, expected), value in zip(second.items(), answers, strict=True):
            if value != expected:
                raise BenchError(f"{key.decode()}: the value came back changed")
        (size,) = self.client.pipeline([("DBSIZE",)])
        if size != len(first) + len(second):
            raise BenchError(f"redis has {size} keys, not {len(first) + len(second)}")
        self.numbers["keys"] = size
        self.numbers["data_bytes"] = len(first) * VALUE_BYTES + sum(map(len, second.values()))


def value_of(number: int, size: int) -> bytes:
    """Bytes that follow from the number alone."""
    word = b"%08x" % zlib.crc32(b"%d" % number)
    return (word * (size // 8 + 1))[:size]


def usable_connections() -> int:
    """How many connections the limit on open files allows, raised if possible: both ends are open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 12_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    return max(50, min(wanted, hard) - 500)
