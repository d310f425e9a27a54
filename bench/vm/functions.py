"""Functions on the worker, in a VM whose memory is plugged and unplugged with their instances: the paper's
four, each in a VM of its own, under a load with the shape of Azure's traces (HotMem §6.2)."""

import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.outcome import BenchError
from bench.processes import ask
from bench.vm.guest import MIB, Contender, Guest, mayfly
from bench.worker.in_vm import INSTANCES, interference, union_length, unplugs_of, worker_in_vm
from bench.worker.worker import Worker


@dataclass(frozen=True)
class Load:
    """The load of one function: this many requests in this many bursts, one each `period_s`."""

    requests: int
    bursts: int
    period_s: float


# After each burst its instances end, so unplugs are as many as bursts times instances: 32 and more. A period
# is as long as an emulated VM takes for a burst's cold starts and requests, plus the idle timeout of an
# instance. There a request of `image` or `text` takes seconds: a thousand would take hours.
LOADS = {
    "page": Load(1000, 8, 40),
    "bfs": Load(1000, 8, 72),
    "image": Load(110, 11, 80),
    "text": Load(64, 16, 80),
}
# The same with KVM.
FAST = 16
# Minutes of the trace after each burst with almost no requests (Shahrad et al., USENIX ATC 2020: bursts that
# end at once).
QUIET_MINUTES = 3
# How often another function's instances end while one function is called.
COLOCATED_ROUNDS = 10


def write_trace(path: Path, function: str, requests: int, bursts: int) -> None:
    """Writes a trace in the format of Azure Functions 2019; a function always has the same numbers."""
    chance = random.Random(function)
    counts: list[int] = []
    for _ in range(bursts):
        counts += [round(requests / bursts * chance.uniform(0.7, 1.3)) + 1]
        counts += [0] * (QUIET_MINUTES - 1) + [chance.randint(0, 1)]
    heading = ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, len(counts) + 1))]
    row = ["bench", "bench", function, "http", *map(str, counts)]
    path.write_text("\n".join(",".join(line) for line in (heading, row)) + "\n")


def load(worker: Worker, function: str, what: Load) -> dict[str, float]:
    """Replays the trace, open loop; returns the report of `mayfly load` about the function."""
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder:
        trace = Path(folder, "trace.csv")
        write_trace(trace, function, what.requests, what.bursts)
        command = [mayfly(), "load", "--trace", trace, "--worker", worker.address, "--json"]
        command += ["--functions", function, "--speed", str(60 * (1 + QUIET_MINUTES) / what.period_s)]
        report = json.loads(ask(command, "mayfly load", None))
    prefix = f"{function}."
    return {key.removeprefix(prefix): value for key, value in report.items() if key.startswith(prefix)}


def trace(contender: Contender, function: str, quick: bool) -> dict[str, list[float]]:
    """Figures 8 and 9: MiB returned per second as instances end, and request latencies meanwhile."""
    what = LOADS[function]
    if quick:
        what = Load(20, 2, what.period_s)
    elif Guest.accelerator == "kvm":
        what = Load(1000, what.bursts, FAST)
    return {f"{function}.{key}": [value] for key, value in traced(contender, function, what).items()}


def traced(contender: Contender, function: str, what: Load) -> dict[str, float]:
    with worker_in_vm(contender.mode, INSTANCES[function]) as worker:
        report = load(worker, function, what)
        deadline = time.monotonic() + 120
        while worker.instances(function) and time.monotonic() < deadline:
            time.sleep(0.5)
        unplugs = unplugs_of(worker)
        plugs = [event for event in worker.read("/events")["events"] if event["kind"] == "plug"]
    if report["failed"] or report["throttled"] or report["refused"]:
        raise BenchError(f"{contender.name}: requests to {function} failed: {report}")
    numbers = {
        "requests": report["sent"],
        "p50_ms": report["latency.p50_ms"],
        "p99_ms": report["latency.p99_ms"],
    }
    numbers["unplugs"] = len(unplugs)
    if unplugs and contender.elastic:
        seconds = union_length([(event["at_ms"] - event["ms"], event["at_ms"]) for event in unplugs]) / 1000
        numbers["unplug_p50_ms"] = median(event["device_ms"] for event in unplugs)
        numbers["mib_per_s"] = len(unplugs) * plugs[0]["bytes"] / MIB / seconds
    return numbers


def colocated(contender: Contender, _: str, quick: bool) -> dict[str, list[float]]:
    """Figure 10, with functions: one is called all the time while the instances of another end."""
    numbers = interference(contender.mode, 2 if quick else 4, 1 if quick else COLOCATED_ROUNDS)
    return {key: [value] for key, value in numbers.items()}
