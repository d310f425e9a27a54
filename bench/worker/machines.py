"""Three workers behind HAProxy, in one run: consistent hashing with bounded load beside round robin, by a
trace of Azure's shape; calls and events that are lost while a worker is drained or killed, and replaced."""

import argparse
import collections
import http.client
import json
import re
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median

from bench import command
from bench.merge.machine import MIB
from bench.outcome import BenchError, Shown, at_most, table
from bench.processes import ask
from bench.worker.experiments import SHIPPED, TRACE
from bench.worker.three import ROUND_ROBIN, Machines, have_namespaces, three_machines
from bench.worker.worker import MAYFLY, TEMPLATE

PARTS = {
    "density": "memory, cold starts and latency of both ways, by the trace",
    "losses": "a worker drained and one killed under load, and replaced",
}
WAYS = {"hash": {}, "round": ROUND_ROBIN}
TITLES = {"hash": "consistent hashing", "round": "round robin"}
# As --keep-alive is by default, in seconds of the trace.
KEEP_ALIVE_S = 300
COLUMNS = {
    "cold_starts": "cold starts",
    "restored": "of them restored",
    "workers": "workers a function",
    "instances": "instances",
    "memory_mib": "MiB of all",
    "instance_mib": "MiB of one",
    "p50_ms": "P50 ms",
    "p99_ms": "P99 ms",
    "unanswered": "not answered",
}
CODE = """
import time
def handler(event, context):
    print("handles", event["number"], flush=True)
    time.sleep(event["seconds"])
    return event["number"]
"""
FUNCTIONS = [f"f{number}" for number in range(12)]
CALLERS = {"RequestResponse": 4, "Event": 1}


def density(way: str, seconds: int, speed: float) -> dict[str, float]:
    """The trace on three new workers: means over its time, and counts."""
    keep_alive = str(round(KEEP_ALIVE_S / speed))
    with three_machines(TEMPLATE, "--keep-alive", keep_alive, **WAYS[way]) as (machines, front):
        load = [MAYFLY, "load", "--trace", TRACE, "--worker", front, "--json", "--speed", speed]
        done = json.loads(ask([*load, "--seconds", seconds * speed], "mayfly load", 1800))
        histories = [worker.read("/history")["samples"] for worker in machines.workers]
        events = [worker.read("/events")["events"] for worker in machines.workers]
        if " is not served: " in machines.log():
            raise BenchError("a function is not served: see mayfly up --check")
    starts = [event for of_one in events for event in of_one if event["kind"] in ("ready", "restored")]
    each = {name: sum(any(e.get("function") == name for e in one) for one in events) for name in SHIPPED}
    # The workers' samples are a second apart; the last ones of each are of the same second.
    count = min(len(samples) for samples in histories)
    count = min(count, round(done["elapsed_s"]))
    memory, instances = [], []
    for together in zip(*(samples[-count:] for samples in histories), strict=True):
        memory.append(sum(map(memory_of, together)) / MIB)
        phases = ("starting", "idle", "busy", "stopping")
        of_all = [
            one[phase] for sample in together for one in sample["functions"].values() for phase in phases
        ]
        instances.append(sum(of_all))
    return {
        "cold_starts": len(starts),
        "restored": sum(event["kind"] == "restored" for event in starts),
        "workers": mean(count for count in each.values() if count),
        "instances": mean(instances),
        "memory_mib": mean(memory),
        "most_memory_mib": max(memory),
        "instance_mib": sum(memory) / sum(instances),
        "requests": done["all.sent"],
        "unanswered": done["all.sent"] - done["all.succeeded"],
        "p50_ms": done["all.latency.p50_ms"],
        "p99_ms": done["all.latency.p99_ms"],
    }


def memory_of(sample: dict) -> int:
    """Of a worker's instances, with what its page stores have beyond that."""
    functions = sample["functions"].values()
    shared = sum(one["shared_bytes"] for one in functions)
    return sum(one["pss_bytes"] for one in functions) + max(0, sample["store"]["bytes"] - shared)


class Callers:
    """Threads that call functions with numbers, each number once, until the block ends."""

    def __init__(self, front: str):
        self.front, self.over, self.lock = front, threading.Event(), threading.Lock()
        self.next = 0
        self.begun: dict[int, float] = {}
        self.answers: dict[str, dict[int, int]] = {kind: {} for kind in CALLERS}

    def __enter__(self):
        self.pool = ThreadPoolExecutor(sum(CALLERS.values()))
        self.running = [self.pool.submit(self.call, kind) for kind in CALLERS for _ in range(CALLERS[kind])]
        return self

    def __exit__(self, *_):
        self.over.set()
        self.pool.shutdown()
        for one in self.running:
            one.result()

    def call(self, kind: str) -> None:
        while not self.over.is_set():
            with self.lock:
                self.next += 1
                number = self.next
                self.begun[number] = time.monotonic()
            self.answers[kind][number] = self.send(kind, number)

    def send(self, kind: str, number: int) -> int:
        """The status, or 0 without an answer."""
        connection = http.client.HTTPConnection(self.front, timeout=120)
        try:
            body = json.dumps({"number": number, "seconds": 0.1 * (number % 2)})
            path = f"/2015-03-31/functions/{FUNCTIONS[number % len(FUNCTIONS)]}/invocations"
            connection.request("POST", path, body, {"X-Amz-Invocation-Type": kind})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def more(self, count: int, limit_s: float = 300) -> None:
        """Waits for so many more answers of each kind."""
        wanted = {kind: len(answers) + count for kind, answers in self.answers.items()}
        deadline = time.monotonic() + limit_s
        while any(len(self.answers[kind]) < wanted[kind] for kind in CALLERS):
            if time.monotonic() > deadline:
                raise BenchError("callers have no answers")
            time.sleep(0.05)

    def with_status(self, kind: str, status: int) -> list[int]:
        return [number for number, found in self.answers[kind].items() if found == status]


def losses(how: signal.Signals, calls: int) -> dict[str, float]:
    """A worker ended and replaced between so many calls."""
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder:
        Path(folder).chmod(0o755)
        options = ("--drain", "5", "--grace", "60")
        with three_machines(template_of_numbers(Path(folder)), *options) as (machines, front):
            with Callers(front) as callers:
                callers.more(calls)
                ended = max(
                    range(3), key=lambda number: handled(machines.workers[number].log.read_text()).total()
                )
                at = time.monotonic()
                machines.end(ended, how)
                callers.more(calls)
                machines.replace(ended)
                callers.more(calls)
            accepted = callers.with_status("Event", 202)
            wait_for_events(machines, accepted)
            times = handled(machines.log())
    answered = callers.with_status("RequestResponse", 200)
    all_answers = [answer for answers in callers.answers.values() for answer in answers.items()]
    failed = {number: status for number, status in all_answers if status not in (200, 202)}
    return {
        "answered": len(answered),
        "accepted": len(accepted),
        "failed_502": sum(status == 502 for status in failed.values()),
        "failed_otherwise": sum(status != 502 for status in failed.values()),
        # HAProxy has noticed a second later.
        "failed_later": sum(callers.begun[number] > at + 1 for number in failed),
        "lost_calls": sum(not times[number] for number in answered),
        "lost_events": sum(not times[number] for number in accepted),
        "run_twice": sum(times[number] > 1 for number in answered + accepted),
        "failed_run_twice": sum(times[number] > 1 for number in failed),
    }


def template_of_numbers(folder: Path) -> Path:
    (folder / "app.py").write_text(CODE)
    properties = {"Runtime": f"python3.{sys.version_info.minor}", "Handler": "app.handler", "CodeUri": "."}
    resources = {
        name.title(): {
            "Type": "AWS::Serverless::Function",
            "Properties": {"FunctionName": name, "MemorySize": 128, "Timeout": 60, **properties},
        }
        for name in FUNCTIONS
    }
    template = {"Metadata": {"Mayfly": {"NearestRuntime": True}}, "Resources": resources}
    (folder / "template.json").write_text(json.dumps(template))
    return folder / "template.json"


def handled(log: str) -> collections.Counter:
    """How often functions have begun with each number."""
    return collections.Counter(map(int, re.findall(r"\] handles (\d+)", log)))


def wait_for_events(machines: Machines, accepted: list[int], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not set(accepted) <= set(handled(machines.log())) and time.monotonic() < deadline:
        time.sleep(0.2)


class Run(command.Run):
    def density(self) -> None:
        """In turn, the next time the other way round."""
        rounds = self.options.rounds or (1 if self.options.quick else 3)
        found: dict[str, list[dict]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                self.measure(
                    f"density.{way}.round.{number}", density, way, self.options.seconds, self.options.speed
                )
                prefix = f"density.{way}.round.{number}."
                own = {k.removeprefix(prefix): v for k, v in self.flat.items() if k.startswith(prefix)}
                found[way].append(own)
        for way, runs in found.items():
            for key in runs[0]:
                self.flat[f"density.{way}.{key}"] = median(run[key] for run in runs)

    def losses(self) -> None:
        for name, how in {"drained": signal.SIGTERM, "killed": signal.SIGKILL}.items():
            self.measure(f"losses.{name}", losses, how, self.options.calls)


def goals(flat: dict) -> list[Shown]:
    found = []
    for key, title in {"cold_starts": "cold starts", "memory_mib": "memory of all", "p99_ms": "P99"}.items():
        both = [flat.get(f"density.{way}.{key}") for way in WAYS]
        if all(both):
            found.append(at_most(f"{title}, hashing / round robin", 1, both[0] / both[1], "x"))
    for name, keys in {
        "drained": ("failed_502", "failed_otherwise", "lost_calls", "lost_events", "run_twice"),
        "killed": ("failed_otherwise", "failed_later", "lost_calls", "lost_events", "failed_run_twice"),
    }.items():
        if f"losses.{name}.answered" in flat:
            value = sum(flat[f"losses.{name}.{key}"] for key in keys)
            found.append(at_most(f"{name}: lost, repeated, failed beyond running calls", 0, value, ""))
    return found


def tables(flat: dict) -> None:
    rows = [["means over the trace", *COLUMNS.values()]]
    for way, title in TITLES.items():
        values = [flat.get(f"density.{way}.{key}") for key in COLUMNS]
        if None not in values:
            rows.append([title, *(f"{value:.4g}" for value in values)])
    if len(rows) > 1:
        print()
        table(rows)
    names = [name for name in ("drained", "killed") if f"losses.{name}.answered" in flat]
    if names:
        print()
        keys = [
            key.removeprefix(f"losses.{names[0]}.") for key in flat if key.startswith(f"losses.{names[0]}.")
        ]
        rows = [
            [key.replace("_", " "), *(str(flat[f"losses.{name}.{key}"]) for name in names)] for key in keys
        ]
        table([["one worker of three", *names], *rows])


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "worker/machines",
        "Three workers behind HAProxy: consistent hashing beside round robin, one drained, one killed",
        "part",
        PARTS,
        "\nAs root each worker has a network namespace. Needs haproxy.\n",
        "one round of 20 seconds, and few calls",
        "worker-machines.json",
        0,
    )
    speed = "minutes of the trace that pass in one [3]: six fill two processors with one worker"
    parser.add_argument("--speed", type=float, default=3, help=speed)
    parser.add_argument("--seconds", type=int, help="seconds of load of each round [120; 20 with --quick]")
    parser.add_argument("--keep", action="store_true", help="keep results of other parts in the output file")
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", PARTS, all_of=True)
    parsed.seconds = parsed.seconds or (20 if parsed.quick else 120)
    parsed.calls = 60 if parsed.quick else 300
    return parsed


if __name__ == "__main__":
    run = Run(arguments(), goals)
    run.flat["namespaces"] = have_namespaces()
    sys.exit(run.main(tables))
