"""Experiments: memory of 1 to 16 instances (UPM Fig. 5, 6), advice of idle instances, cold starts (UPM Fig.
8), latency of warm instances. Instances in a VM are in in_vm.py."""

import contextlib
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench.outcome import ROOT, BenchError, percentile
from bench.worker.worker import MAYFLY, PLAIN, Worker, running

MIB = 1 << 20
MODELS = ("image", "text")
SHIPPED = ("image", "text", "bfs", "page", "thumbnail", "dna")
# By layer; `started` has all but snapshots, so that every instance starts.
VARIANTS = {
    "plain": PLAIN,
    "heap": ["--without", "merge,ready"],
    "merge": ["--without", "heap,snapshot,ready"],
    "started": ["--without", "snapshot"],
    "mayfly": [],
}
# Memory that an idle instance advises, and its heap's lifetimes: one class for all objects, as merging
# instances have, or learned while it runs.
ADVISED = ("named", "whole")
LIFETIMES = {"inf": {}, "online": {"MAYFLY_HEAP_LIFETIMES": "online"}}
TRACE = ROOT / "functions" / "trace.csv"


def available_bytes() -> int:
    """The host's available memory, its caches dropped where permitted: the median of a few readings, since
    other processes start and end."""
    with contextlib.suppress(OSError):
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    readings = []
    for _ in range(9):
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        readings.append(int(lines["MemAvailable"].split()[0]) << 10)
        time.sleep(0.2)
    return round(median(readings))


def memory(functions: tuple[str, ...], variant: str, counts: list[int]) -> dict[str, float]:
    """MiB of an instance by PSS, with its part of the store's unmapped pages, and of all by the fall of the
    host's available memory (UPM §VI-D, `free`), for each count of instances of each function at rest."""
    numbers = {}
    # Room for MemorySize of each instance: with less, the worker would end the first ones.
    options = ("--burst", "4", "--keep-alive", "3600", "--queue-wait", "300", "--memory", str(64 << 10))
    with running(*VARIANTS[variant], *options) as worker:
        worker.invoke("page", 1)  # one-time costs of the first sandbox, such as the page cache
        time.sleep(1)
        before = available_bytes()
        for count in counts:
            for function in functions:
                worker.start_instances(function, count)
            worker.wait_for_rest()
            time.sleep(2)  # a sample of the store is a second old at most
            there = [one for function in functions for one in worker.instances(function)]
            number = len(there)
            if number != count * len(functions):
                raise BenchError(f"{number} instances instead of {count} of each of {functions}")
            total = {key: sum(one[f"{key}_bytes"] for one in there) for key in ("pss", "private", "shared")}
            store = worker.store_bytes() if variant in ("merge", "mayfly") else 0
            untouched = max(0, store - total["shared"])
            numbers |= {
                f"{count}.instances": number,
                f"{count}.pss_mib": total["pss"] / number / MIB,
                f"{count}.private_mib": total["private"] / number / MIB,
                f"{count}.each_mib": (total["pss"] + untouched) / number / MIB,
                f"{count}.store_mib": store / MIB,
                f"{count}.available_drop_mib": (before - available_bytes()) / MIB,
            }
    return numbers


def advise(function: str, advised: str, lifetimes: str, count: int) -> dict[str, float]:
    """Instances at rest, by their advice: memory of each, the time that merging took, and private memory
    after ten more requests for each, which write to merged pages."""
    with running(
        "--without",
        "snapshot",
        "--advise",
        advised,
        "--burst",
        "4",
        "--keep-alive",
        "3600",
        "--queue-wait",
        "300",
    ) as worker:
        worker.set_variables(function, LIFETIMES[lifetimes])
        worker.start_instances(function, count)
        worker.wait_for_rest()
        time.sleep(2)  # a sample of the store is a second old at most
        there = worker.instances(function)
        total = {key: sum(one[f"{key}_bytes"] for one in there) for key in ("pss", "private", "shared")}
        untouched = max(0, worker.store_bytes() - total["shared"])
        merges = [event for event in worker.read("/events")["events"] if event["kind"] == "merge"]
        anonymous = worker.anonymous_mib()
        with ThreadPoolExecutor(count) as pool:
            times = list(pool.map(lambda n: worker.invoke(function, n), range(10 * count)))
        written = worker.anonymous_mib() - anonymous  # before they rest again
        number = len(there)
        return {
            "instances": number,
            "each_mib": (total["pss"] + untouched) / number / MIB,
            "private_mib": total["private"] / number / MIB,
            "shared_mib": total["shared"] / number / MIB,
            "advised_mib": sum(event["bytes"] for event in merges) / number / MIB,
            "advise_ms": sum(event["ms"] for event in merges) / number,
            "first_merge_ms": merges[0]["ms"] if merges else 0,
            "p50_ms": median(times),
            "private_after_mib": (total["private"] / MIB + written) / number,
        }


def cold(function: str, variant: str, count: int) -> dict[str, float]:
    """The first instance of a new worker, a few times: from request to answer, and its start alone."""
    totals, starts = [], []
    for number in range(count):
        with running(*VARIANTS[variant]) as worker:
            totals.append(worker.invoke(function, number))
            ready = [event for event in worker.read("/events")["events"] if event["kind"] == "ready"]
            if not ready:
                raise BenchError(f"{function}: no instance started")
            starts.append(ready[0]["ms"])
    return {"first_answer_ms": median(totals), "start_ms": median(starts)}


def latency(function: str, variants: list[str], requests: int, rounds: int) -> dict[str, float]:
    """Warm requests to all variants in turn, one request each, so that other load of the machine hits all:
    without a pause, and after one in which the instance rests."""
    steady: dict[str, list[float]] = {variant: [] for variant in variants}
    rested: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            workers = {
                variant: stack.enter_context(running(*VARIANTS[variant], "--burst", "1"))
                for variant in variants
            }
            for worker in workers.values():
                for number in range(20):
                    worker.invoke(function, number)
            for worker in workers.values():
                worker.wait_for_rest()
            for number in range(requests):
                for variant, worker in workers.items():
                    time.sleep(0.01)  # so that no quota of processor time is used up
                    steady[variant].append(worker.invoke(function, number))
            for number in range(requests // 20):
                time.sleep(1)  # they rest after 0.3 s
                for variant, worker in workers.items():
                    rested[variant].append(worker.invoke(function, number))
    numbers = {}
    for variant in variants:
        times = steady[variant]
        numbers |= {
            f"{variant}.p50_ms": median(times),
            f"{variant}.p99_ms": percentile(times, 99),
            f"{variant}.rested_p50_ms": median(rested[variant]),
        }
    return numbers


def replay(worker: Worker, seconds: int, speed: float) -> dict:
    """The first seconds of the shipped trace, with progress on stderr; the results of `mayfly load`."""
    command = [MAYFLY, "load", "--trace", TRACE, "--worker", worker.address, "--json"]
    command += ["--seconds", str(seconds), "--speed", str(speed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode:
        raise BenchError("mayfly load failed")
    return json.loads(done.stdout)
