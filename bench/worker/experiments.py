"""What is measured: memory of 1 to 16 instances (UPM Fig. 5, 6), cold starts (UPM Fig. 8), latency of warm
instances, and how a virtual machine's memory comes back (HotMem Fig. 8, 9, 10)."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median

from bench.outcome import ROOT, BenchError
from bench.worker.worker import MAYFLY, PLAIN, Worker, running

MIB = 1 << 20
MODELS = ("image", "text")
# Instances of each function in a VM, whose processors are few and may be emulated.
INSTANCES = {"image": 3, "text": 2, "bfs": 4, "page": 4}
VARIANTS = {"plain": PLAIN, "heap": ["--without", "merge"], "merge": ["--without", "heap"], "mayfly": []}
TRACE = ROOT / "functions" / "trace.csv"


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def available_bytes() -> int:
    """What the host has left, its caches dropped where we may: the median of a few looks, since other
    processes come and go."""
    with contextlib.suppress(OSError):
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    looks = []
    for _ in range(9):
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        looks.append(int(lines["MemAvailable"].split()[0]) << 10)
        time.sleep(0.2)
    return round(median(looks))


def memory(function: str, variant: str, counts: list[int]) -> dict[str, float]:
    """MiB of an instance by PSS, with its part of what lies in the store unmapped, and of all by what the
    host has less (UPM §VI-D, `free`); whenever so many instances are there and at rest."""
    numbers = {}
    with running(*VARIANTS[variant], "--burst", "4", "--keep-alive", "3600", "--queue-wait", "300") as worker:
        worker.invoke("page", 1)  # what the first sandbox alone brings, such as the page cache
        time.sleep(1)
        before = available_bytes()
        for count in counts:
            worker.start_instances(function, count)
            worker.wait_for_rest()
            time.sleep(2)  # a sample of the store is a second old at most
            there = worker.instances(function)
            number = len(there)
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
    """Warm requests to all variants in turn, one request each, so that what else the machine does falls on
    all: one after the other, and after a pause in which the instance rests."""
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


@contextlib.contextmanager
def machine(mode: str, partitions: int) -> Iterator[Worker]:
    """A worker whose instances live in a VM, and are kept for 8 s."""
    # It only looks if there is an image.
    kernel = ["--kernel", "hotmem"] if mode == "hotmem" else []
    made = subprocess.run([MAYFLY, "vm", "image", *kernel], capture_output=True, text=True)
    if made.returncode:
        raise BenchError(f"mayfly vm image: {made.stderr.strip().splitlines()[-1]}")
    where = ["--sandbox", "vm", "--mode", mode, "--partitions", str(partitions)]
    with running(*where, "--keep-alive", "8", "--queue-wait", "300", "--burst", "2") as worker:
        yield worker


def burst(worker: Worker, function: str, count: int) -> list[float]:
    """Requests at once, each for an instance of its own, and as many again."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: worker.invoke(function, number), range(2 * count)))


def wait_until_gone(worker: Worker, function: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while worker.instances(function) and time.monotonic() < deadline:
        time.sleep(0.5)


def reclaim(mode: str, function: str, count: int) -> dict[str, float]:
    """A burst of requests starts instances in a VM; then nobody calls them and they end: how fast
    their memory comes back (HotMem Fig. 8), and how long requests took meanwhile (Fig. 9)."""
    with machine(mode, count) as worker:
        times = burst(worker, function, count)
        wait_until_gone(worker, function, 120)
        time.sleep(1)
        events = worker.read("/events")["events"]
    numbers = {"p50_ms": median(times), "p99_ms": percentile(times, 99)}
    size = next((event["bytes"] for event in events if event["kind"] == "plug"), 0)
    unplugs = [event["device_ms"] for event in events if event["kind"] == "unplug" and event.get("device_ms")]
    numbers["unplugs"] = len(unplugs)
    if unplugs and mode != "static":
        numbers["unplug_p50_ms"] = median(unplugs)
        numbers["mib_per_s"] = 1000 * size / MIB / median(unplugs)
    return numbers


def interference(mode: str, count: int, limit_s: float) -> dict[str, float]:
    """One function is called all the time, one request after the other, while instances of another end and
    their memory is unplugged (HotMem Fig. 10)."""
    with machine(mode, count + 1) as worker:
        worker.invoke("bfs", 0)
        burst(worker, "page", count)
        began, times = time.monotonic(), []
        while time.monotonic() - began < limit_s:
            at_ms = worker.read("/history?after=999999999999")["now_ms"]
            times.append((at_ms, worker.invoke("bfs", len(times))))
            if not worker.instances("page"):
                break
        events = worker.read("/events")["events"]
    unplugs = [event for event in events if event["kind"] == "unplug"]
    spans = [(event["at_ms"] - event["ms"], event["at_ms"]) for event in unplugs]
    meanwhile = [took for at, took in times if any(at <= end and at + took >= start for start, end in spans)]
    others = [took for at, took in times if took not in meanwhile]
    numbers: dict[str, float] = {"requests": len(times), "requests_meanwhile": len(meanwhile)}
    if others:
        numbers["otherwise_ms"] = mean(others)
    if meanwhile and others:
        numbers |= {"meanwhile_ms": mean(meanwhile), "ratio": mean(meanwhile) / mean(others)}
    return numbers


def replay(worker: Worker, seconds: int, speed: float) -> dict:
    """The first seconds of the shipped trace, with progress on stderr; what `mayfly load` says of it."""
    command = [MAYFLY, "load", "--trace", TRACE, "--worker", worker.address, "--json"]
    command += ["--seconds", str(seconds), "--speed", str(speed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode:
        raise BenchError("mayfly load failed")
    return json.loads(done.stdout)
