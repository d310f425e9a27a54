"""A running `mayfly up`, and requests to it."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.merge.machine import memory_of
from bench.outcome import ROOT, BenchError
from bench.processes import started

# A build to compare with.
BEFORE = os.environ.get("MAYFLY_BEFORE")
MAYFLY = Path(os.environ.get("MAYFLY_COMMAND") or ROOT / "target" / "release" / "mayfly")
TEMPLATE = ROOT / "functions" / "template.yaml"
# The same worker without Mayfly's layers.
PLAIN = ["--without", "heap,merge,ready"]
# The first start installs the functions' packages.
START_S = 600


class Worker:
    def __init__(self, process: subprocess.Popen, address: str, log: Path):
        self.process, self.address, self.log = process, address, log
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.ahead_ms: float | None = None

    def ask(self, method: str, path: str, body: str = "", timeout_s: float = 180):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read().decode()
        except OSError as error:
            raise BenchError(f"the worker does not answer at {path}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200 or answer.headers.get("x-amz-function-error"):
            raise BenchError(f"the worker answers {answer.status} at {path}: {text[:200]}")
        return text

    def invoke(self, function: str, seed: int) -> float:
        """Milliseconds from the request to its answer."""
        begun = time.monotonic()
        path = f"/2015-03-31/functions/{function}/invocations"
        self.ask("POST", path, json.dumps({"seed": seed}))
        return 1000 * (time.monotonic() - begun)

    def read(self, path: str):
        return json.loads(self.ask("GET", path))

    def now_ms(self) -> float:
        """The worker's clock, by which events are dated; read once, since a request takes the worker's
        time."""
        if self.ahead_ms is None:
            self.ahead_ms = self.read("/history?after=999999999999")["now_ms"] - 1000 * time.monotonic()
        return 1000 * time.monotonic() + self.ahead_ms

    def instances(self, function: str) -> list[dict]:
        return [one for one in self.read("/instances")["instances"] if one["function"] == function]

    def limit_instances(self, function: str, count: int) -> None:
        reserved = json.dumps({"ReservedConcurrentExecutions": count})
        self.ask("PUT", f"/2017-10-31/functions/{function}/concurrency", reserved)

    def start_instances(self, function: str, count: int, seed: int = 0) -> None:
        """Sends requests at once until there are `count` instances, since each serves one at a time; then
        five requests for each, to let its memory settle, as UPM §VI-C does."""
        self.limit_instances(function, count)
        with ThreadPoolExecutor(count) as pool:
            for _attempt in range(20):
                if len(self.instances(function)) >= count:
                    break
                list(pool.map(lambda n: self.invoke(function, n), range(seed, seed + 2 * count)))
            else:
                raise BenchError(f"{function}: {count} instances did not start")
            for _ in range(5):
                list(pool.map(lambda n: self.invoke(function, n), range(seed, seed + count)))

    def set_variables(self, function: str, variables: dict[str, str]) -> None:
        """Adds to the function's Environment; its next instances have it."""
        if variables:
            path = f"/2015-03-31/functions/{function}/configuration"
            there = self.read(path).get("Environment", {}).get("Variables", {})
            self.ask("PUT", path, json.dumps({"Environment": {"Variables": there | variables}}))

    def wait_for_rest(self, quiet_s: float = 7, limit_s: float = 300) -> None:
        """Waits until every instance is idle and nothing was merged or returned for a while. On a busy
        machine that is longer than the longest rest took, since the worker reports a rest at its end. An
        instance without any work rests after 5 s."""
        deadline, last, since, longest_s = time.monotonic() + limit_s, None, time.monotonic(), 0
        while time.monotonic() < deadline:
            busy = [one for one in self.read("/instances")["instances"] if one["phase"] != "idle"]
            newest = self.read("/events?after=0")
            if busy or newest["next"] != last:
                last, since = newest["next"], time.monotonic()
                merges = [event["ms"] for event in newest["events"] if event["kind"] == "merge"]
                longest_s = max(merges, default=0) / 1000
            if time.monotonic() - since > max(quiet_s, 2 * longest_s):
                return
            time.sleep(0.25)

    def starts(self, function: str) -> list[float]:
        """Milliseconds of its instances, in order, until they asked for work."""
        kinds = ("ready", "restored")
        events = [event for event in self.read("/events")["events"] if event["kind"] in kinds]
        return [event["ms"] for event in events if event["function"] == function]

    def wait_for_snapshots(self, functions: tuple[str, ...], limit_s: float = 120) -> None:
        """Waits until each function has a snapshot, or the worker has said that it starts without."""
        deadline = time.monotonic() + limit_s
        for function in functions:
            # Without the right to trace the worker says so once, for all functions.
            settled = rf"\[{function}\] (has a snapshot|starts as ever, without)|functions start as ever: "
            while not re.search(settled, self.log.read_text()):
                if time.monotonic() > deadline:
                    raise BenchError(f"{function} has no snapshot after {limit_s} s")
                time.sleep(0.1)

    def wait_until_empty(self, limit_s: float = 60) -> None:
        """Waits until no instance is left."""
        deadline = time.monotonic() + limit_s
        while self.read("/instances")["instances"]:
            if time.monotonic() > deadline:
                raise BenchError("idle instances do not end")
            time.sleep(0.1)

    def anonymous_mib(self) -> float:
        """Anonymous MiB of all instances' processes, read now: the worker's samples may be a second old."""
        return memory_of(below(self.process.pid))["anonymous"]

    def store_bytes(self) -> int:
        samples = self.read("/history")["samples"]
        return samples[-1]["store"]["bytes"] if samples else 0


def below(process: int, with_stores: bool = False) -> Iterator[int]:
    """Its descendants; page stores, whose memory is not the instances', only on request."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                is_store = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[1:2] == [b"share"]
                if with_stores or not is_store:
                    yield child
                    yield from below(child, with_stores)


@contextlib.contextmanager
def running(
    *arguments: str, template: Path = TEMPLATE, quiet_s: float = START_S, program: Path = MAYFLY
) -> Iterator[Worker]:
    """A worker with the functions of a template, on a free port, ended with the block."""
    if not program.exists():
        raise BenchError(f"{program}: not built: run 'make build'")
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder:
        log = Path(folder) / "log"
        address = lambda: re.search(r"serving Lambda's API on http://(\S+)\n", log.read_text())  # noqa: E731
        command = [program, "up", template, "--listen", "127.0.0.1:0", *arguments]
        with started(command, "mayfly up", log, address, quiet_s) as (process, found):
            yield Worker(process, found[1], log)
