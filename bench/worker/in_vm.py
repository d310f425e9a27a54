"""Instances in a VM, whose memory is reclaimed when they end: how fast (HotMem Fig. 8), how long requests
take (Fig. 9), and those of another instance meanwhile (Fig. 10). And the savings of merging there."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median

from bench.outcome import BenchError, percentile
from bench.processes import ask
from bench.worker.experiments import MIB
from bench.worker.worker import MAYFLY, Worker, running

MODES = ("static", "plain", "nodes", "hotmem")
# Instances of each function in a VM, whose processors are few and may be emulated.
INSTANCES = {"image": 3, "text": 2, "bfs": 4, "page": 4}
KEEP_ALIVE_S = 8
# Seconds before and after the others' first end for which the co-located instance's requests are averaged.
BEFORE_S, AFTER_S = 5, 10
Span = tuple[float, float]


@contextlib.contextmanager
def worker_in_vm(
    mode: str, partitions: int, *, merging: bool = False, kept_s: int = KEEP_ALIVE_S
) -> Iterator[Worker]:
    """A worker whose instances live in a VM. Comparisons of modes merge nothing: modes differ in how the VM's
    memory grows and shrinks, and in nothing else."""
    # Returns at once where there is an image.
    kernel = ["--kernel", "hotmem"] if mode == "hotmem" else []
    ask([MAYFLY, "vm", "image", *kernel], "mayfly vm image", None)
    where = ["--sandbox", "vm", "--mode", mode, "--partitions", str(partitions)]
    where += ["--without", "snapshot" if merging else "merge"]
    with running(*where, "--keep-alive", str(kept_s), "--queue-wait", "300", "--burst", "2") as worker:
        yield worker


def burst(worker: Worker, function: str, count: int, rounds: int = 2) -> list[float]:
    """Requests at once, each for an instance of its own, `rounds` times over."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: worker.invoke(function, number), range(rounds * count)))


def unplugs_of(worker: Worker, after: int = 0) -> list[dict]:
    return [event for event in worker.read(f"/events?after={after}")["events"] if event["kind"] == "unplug"]


def union_length(spans: list[Span]) -> float:
    """The length of their union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def reclaim(mode: str, function: str, count: int, rounds: int) -> dict[str, float]:
    """A burst of requests starts instances in a VM; without further calls they end: how fast their memory is
    reclaimed (HotMem Fig. 8), and how long requests took (Fig. 9)."""
    with worker_in_vm(mode, count) as worker:
        times = burst(worker, function, count, rounds)
        deadline = time.monotonic() + 120
        while len(unplugs_of(worker)) < count and time.monotonic() < deadline:
            time.sleep(0.5)
        unplugs = unplugs_of(worker)
        plugs = [event for event in worker.read("/events")["events"] if event["kind"] == "plug"]
    numbers = {"requests": len(times), "p50_ms": median(times), "p99_ms": percentile(times, 99)}
    numbers["unplugs"] = len(unplugs)
    if unplugs and mode != "static":
        # Some are unplugged at the same time, so the time counts in which any was: by the worker's clock,
        # with the agent's check before and its confirmation after.
        seconds = union_length([(event["at_ms"] - event["ms"], event["at_ms"]) for event in unplugs]) / 1000
        numbers["unplug_p50_ms"] = median(event["device_ms"] for event in unplugs)
        numbers["mib_per_s"] = len(unplugs) * plugs[0]["bytes"] / MIB / seconds
    return numbers


def interference(mode: str, count: int, rounds: int) -> dict[str, float]:
    """One function is called all the time, one request after the other, while the instances of another end
    and their memory is unplugged, several times (HotMem Fig. 10). `static` shows the cost of their end alone.

    The other's cold starts are left out: the time counts from the last answer of its burst."""
    times: list[tuple[float, float]] = []
    spans: list[Span] = []
    quiet: list[Span] = []
    with worker_in_vm(mode, count + 1) as worker:
        worker.invoke("bfs", 0)
        with called_all_the_time(worker, "bfs", times):
            for _ in range(rounds):
                after = worker.read("/events")["next"]
                burst(worker, "page", count)
                answered = worker.now_ms()
                spans += ends_of(worker, "page", after)
                time.sleep(AFTER_S)
                quiet.append((answered, worker.now_ms()))
    times = [one for one in times if any(start <= one[0] <= end - one[1] for start, end in quiet)]
    sorted_out: dict[bool, list[float]] = {True: [], False: []}
    for at, took in times:
        sorted_out[any(at <= end and at + took >= start for start, end in spans)].append(took)
    meanwhile, others = sorted_out[True], sorted_out[False]
    numbers: dict[str, float] = {
        "ends": len(spans),
        "requests": len(times),
        "requests_meanwhile": len(meanwhile),
    }
    if others:
        numbers["otherwise_ms"] = mean(others)
    if meanwhile and others:
        numbers |= {"meanwhile_ms": mean(meanwhile), "ratio": mean(meanwhile) / mean(others)}
    # A round whose instances all ended earlier has none.
    firsts = [
        min((start for start, _ in spans if answered < start <= over), default=float("inf"))
        for answered, over in quiet
    ]
    for second in range(-BEFORE_S, AFTER_S):
        within = [
            took for at, took in times for end in firsts if second <= (at + took - end) / 1000 < second + 1
        ]
        if within:
            numbers[f"over_time.{second + BEFORE_S}.at_s"] = second
            numbers[f"over_time.{second + BEFORE_S}.mean_ms"] = mean(within)
    return numbers


@contextlib.contextmanager
def called_all_the_time(worker: Worker, function: str, times: list[tuple[float, float]]) -> Iterator[None]:
    """Adds the time at which each request was sent, by the worker's clock, and its latency."""
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            at = worker.now_ms()
            times.append((at, worker.invoke(function, len(times))))

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call)
        try:
            yield
        finally:
            over.set()
            calling.result()


def ends_of(worker: Worker, function: str, after: int) -> list[Span]:
    """For each of its instances, the span from its stop to its unplug, by the worker's clock."""
    deadline = time.monotonic() + 120
    while worker.instances(function):
        if time.monotonic() > deadline:
            raise BenchError(f"instances of {function} do not end")
        time.sleep(0.2)
    time.sleep(2)  # for the last one's unplug
    events = worker.read(f"/events?after={after}")["events"]
    stops = {event["instance"]: event["at_ms"] for event in events if event["kind"] == "stop"}
    unplugs = {event["instance"]: event["at_ms"] for event in events if event["kind"] == "unplug"}
    return [(stops[one], unplugs[one]) for one in stops if one in unplugs]


def together(function: str, merging: bool, count: int) -> dict[str, float]:
    """All layers at once: MiB of instances at rest in their partitions, of what the VM's kernel has merged
    for them, and of the VM on the host."""
    with worker_in_vm("hotmem", count, merging=merging, kept_s=3600) as worker:
        worker.start_instances(function, count)
        worker.wait_for_rest()
        time.sleep(10)  # the guest reports free pages some seconds late
        there = worker.instances(function)
        vm = worker.read("/history")["samples"][-1]["vm"]
    return {
        "instances": len(there),
        "each_mib": sum(one["pss_bytes"] for one in there) / len(there) / MIB,
        "merged_mib": vm["merged_bytes"] / MIB,
        "stands_for_mib": vm["mapped_merged_bytes"] / MIB,
        "vm_resident_mib": vm["resident_bytes"] / MIB,
    }
