"""Python servers with many workers: memory of all together, latency of requests, time of the start; plain,
with the recipe of python/README.md, and with all of each worker advised."""

import contextlib
import threading
from statistics import median

from bench.merge.machine import take_and_return
from bench.merge.serving import Kind, Server, serving, system_mib
from bench.outcome import BenchError, percentile

METHODS = ["plain", "pack", "process"]
CLIENTS = 2
BATCH = 100
MOST_BATCHES = 100
MAX_WORKER_MIB = 400  # the most that a worker takes
PARTS = 5
Numbers = dict[str, float]


def asked(server: Server, numbers: range) -> dict[int, tuple[str, float]]:
    """Answers and milliseconds, of a few clients at a time."""
    found: dict[int, tuple[str, float]] = {}

    def client(first: int) -> None:
        for number in numbers[first::CLIENTS]:
            found[number] = server.ask(number)

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) != len(numbers):
        raise BenchError(
            f"servers: {server.method}: only {len(found)} of {len(numbers)} requests were answered"
        )
    return found


def batch_of_each(servers: dict[str, Server], begin: int) -> dict[str, list[float]]:
    """Milliseconds of the same requests to all servers in turn, so that a slow moment hits all."""
    batches = {method: asked(server, range(begin, begin + BATCH)) for method, server in servers.items()}
    for number in range(begin, begin + BATCH):
        if len({batch[number][0] for batch in batches.values()}) != 1:
            raise BenchError(f"servers: answers to request {number} differ between methods")
    return {method: [ms for _, ms in batch.values()] for method, batch in batches.items()}


def warmed(servers: dict[str, Server]) -> dict[str, list[float]]:
    """Milliseconds of the first requests, until all workers share: each begins after its first answer."""
    took: dict[str, list[float]] = {method: [] for method in servers}
    for begin in range(0, MOST_BATCHES * BATCH, BATCH):
        for method, times in batch_of_each(servers, begin).items():
            took[method] += times
        if all(server.all_share() for server in servers.values()):
            return took
    missing = [method for method, server in servers.items() if not server.all_share()]
    raise BenchError(
        f"servers: {', '.join(missing)}: not all workers share after {len(took['plain'])} requests"
    )


def started(kind: Kind, workers: int, rounds: int) -> dict[str, list[float]]:
    """Seconds until all workers are ready, of all methods in turn."""
    took: dict[str, list[float]] = {method: [] for method in METHODS}
    with serving(kind, "plain", workers):
        pass  # the first start reads files into the page cache, and does not count
    for _ in range(rounds):
        for method in METHODS:
            take_and_return(MAX_WORKER_MIB * workers)
            with serving(kind, method, workers) as server:
                took[method].append(server.start_s)
    return took


def spread(name: str, values: list[float]) -> Numbers:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def p99_of_parts(blocks: list[dict[str, list[float]]], method: str) -> list[float]:
    parts = [blocks[number::PARTS] for number in range(PARTS)]
    return [percentile(sum((block[method] for block in part), []), 99) for part in parts if part]


def compare(kind: Kind, workers: int, starts: int, requests: int) -> Numbers:
    numbers: Numbers = {"workers": workers, "requests": requests}
    start_s = started(kind, workers, starts)
    with contextlib.ExitStack() as stack:
        take_and_return(len(METHODS) * MAX_WORKER_MIB * workers)
        servers = {method: stack.enter_context(serving(kind, method, workers)) for method in METHODS}
        first = warmed(servers)
        begun = len(first["plain"])
        blocks = [batch_of_each(servers, begin) for begin in range(begun, begun + requests, BATCH)]
        for method, server in servers.items():
            numbers[f"{method}.system_mib"] = system_mib(server)
    for method in METHODS:
        numbers |= {f"{method}.first_max_ms": max(first[method]), "first_requests": len(first[method])}
        times = [ms for block in blocks for ms in block[method]]
        numbers |= {f"{method}.p50_ms": percentile(times, 50), f"{method}.p99_ms": percentile(times, 99)}
        numbers |= {f"{method}.{key}": value for key, value in spread("start_s", start_s[method]).items()}
        for key in ("system_mib", "p50_ms", "p99_ms", "first_max_ms"):
            numbers[f"{method}.{key.rpartition('_')[0]}_ratio"] = (
                numbers[f"{method}.{key}"] / numbers[f"plain.{key}"]
            )
        pairs = zip(start_s[method], start_s["plain"], strict=True)
        ratios = {"start_ratio": [ours / plain for ours, plain in pairs]}
        # The same of parts of the run: they show its accuracy.
        ours, plain = p99_of_parts(blocks, method), p99_of_parts(blocks, "plain")
        numbers |= {f"{method}.p99_ms_min": min(ours), f"{method}.p99_ms_max": max(ours)}
        ratios["p99_part"] = [one / other for one, other in zip(ours, plain, strict=True)]
        for key, values in ratios.items():
            numbers |= {f"{method}.{name}": value for name, value in spread(key, values).items()}
    return numbers
