"""What is measured: memory of 1 to 16 instances (UPM Fig. 5, 6), cold starts (UPM Fig. 8), latency of warm
instances, and how a virtual machine's memory comes back (HotMem Fig. 8, 9, 10)."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median

from bench.outcome import ROOT, BenchError
from bench.worker.worker import MAYFLY, PLAIN, Worker, running

MIB = 1 << 20
MODELS = ("image", "text")
VARIANTS = {"plain": PLAIN, "heap": ["--without", "merge"], "merge": ["--without", "heap"], "mayfly": []}
TRACE = ROOT / "functions" / "trace.csv"


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) << 10


def memory(function: str, variant: str, counts: list[int]) -> dict[str, float]:
    """MiB of an instance by PSS, with its part of what lies in the store unmapped, and of all by what the
    host has less (UPM §VI-D, `free`); whenever so many instances are there and at rest."""
    numbers = {}
    with running(*VARIANTS[variant], "--burst", "4", "--keep-alive", "3600") as worker:
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
    """Warm requests, one after the other, to each variant in turn, so that what else the machine does falls
    on all."""
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant in variants:
            with running(*VARIANTS[variant], "--burst", "1") as worker:
                for number in range(20):
                    worker.invoke(function, number)
                found[variant] += [worker.invoke(function, number) for number in range(requests)]
    numbers = {}
    for variant, times in found.items():
        numbers |= {f"{variant}.p50_ms": median(times), f"{variant}.p99_ms": percentile(times, 99)}
    return numbers


def virtual_machine(mode: str, instances: int, limit_s: float) -> dict[str, float]:
    """A burst starts instances of a function in a VM whose memory grows and shrinks in this way; then nobody
    calls them, they end, and their memory is unplugged. Another function is called all the time, one request
    after the other (HotMem §6.2)."""
    # It only looks if there is an image.
    made = subprocess.run([MAYFLY, "vm", "image"], capture_output=True, text=True)
    if made.returncode:
        raise BenchError(f"mayfly vm image: {made.stderr.strip().splitlines()[-1]}")
    where = ["--sandbox", "vm", "--mode", mode, "--partitions", str(instances + 1)]
    with running(*where, "--keep-alive", "10", "--queue-wait", "300") as worker:
        worker.invoke("bfs", 0)
        with ThreadPoolExecutor(instances) as pool:
            burst = list(pool.map(lambda number: worker.invoke("page", number), range(4 * instances)))
        began, times = time.monotonic(), []
        while time.monotonic() - began < limit_s:
            offset_ms = worker.read("/history?after=999999999999")["now_ms"]
            times.append((offset_ms, worker.invoke("bfs", len(times))))
            if not worker.instances("page") and time.monotonic() - began > 20:
                break
        time.sleep(3)
        events = worker.read("/events")["events"]
    unplugs = [event for event in events if event["kind"] == "unplug"]
    numbers = {"burst_p50_ms": median(burst), "burst_p99_ms": percentile(burst, 99), "unplugs": len(unplugs)}
    if not unplugs:
        return numbers
    spent_ms = sum(event["ms"] for event in unplugs)
    numbers["unplug_p50_ms"] = median(event["ms"] for event in unplugs)
    numbers["unplug_mib_per_s"] = sum(event["bytes"] for event in unplugs) / MIB / spent_ms * 1000
    # HotMem Fig. 10: requests that ran while memory was unplugged, beside the others.
    spans = [(event["at_ms"] - event["ms"], event["at_ms"]) for event in unplugs]
    meanwhile = [took for at, took in times if any(at <= end and at + took >= start for start, end in spans)]
    others = [took for at, took in times if took not in meanwhile]
    if meanwhile and others:
        numbers["interference_ratio"] = mean(meanwhile) / mean(others)
    return numbers


def replay(worker: Worker, seconds: int, speed: float) -> dict:
    """The first seconds of the shipped trace, with progress on stderr; what `mayfly load` says of it."""
    command = [MAYFLY, "load", "--trace", TRACE, "--worker", worker.address, "--json"]
    command += ["--seconds", str(seconds), "--speed", str(speed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode:
        raise BenchError("mayfly load failed")
    return json.loads(done.stdout)
