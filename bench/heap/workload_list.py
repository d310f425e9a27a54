"""All workloads by name: their allocators, rounds and two sizes."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.heap import build, programs, redis, small
from bench.heap.allocators import PEERS, Allocator
from bench.heap.measure import Numbers, run_reporting

PAIRS = ("paths", "sizes")  # workloads that report ns per allocation and free, path by path


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    run: Callable[[Allocator, bool], Numbers]
    rounds: int = 3
    # Variants measured besides the default allocators; the paper's layout always.
    extra: tuple[str, ...] = ("mayfly:lines",)
    has_memory: bool = True  # whether its peak RSS is part of the geometric mean

    def can_run(self, allocator: Allocator) -> bool:
        """Right lifetimes are known only in swing, which passes them at each allocation."""
        return self.name == "swing" or "oracle" not in allocator.variant


def compiled(
    name: str, full: list[int], quick: list[int], timeout_s: float = 120
) -> Callable[[Allocator, bool], Numbers]:
    def run(allocator: Allocator, is_quick: bool) -> Numbers:
        numbers = run_reporting(allocator, [build.program(name), *(quick if is_quick else full)], timeout_s)
        if name in PAIRS:
            # One time for the whole table: no path counts more than another.
            times = [value for key, value in numbers.items() if key.endswith("_ns")]
            product = 1.0
            for value in times:
                product *= value ** (1 / len(times))
            numbers["time_ms"] = product / 1e6
        return numbers

    return run


def redis_run(allocator: Allocator, is_quick: bool) -> Numbers:
    numbers, samples, phases = redis.run(allocator, redis.QUICK if is_quick else redis.FULL)
    # Kept for the plot of RSS over time; a result file holds one number under each name.
    for n, (second, kib) in enumerate(samples):
        numbers[f"over_time.{n:04}.at_s"] = round(second, 2)
        numbers[f"over_time.{n:04}.rss_mib"] = round(kib / 1024, 1)
    for second, name in phases:
        numbers[f"phase.{name.replace(' ', '_')}.at_s"] = round(second, 2)
    return numbers


# Further allocators for a workload, besides all as installed: peers on huge pages, all under THP=always.
ON_HUGE_PAGES = (
    *(f"{name}:huge" for name in PEERS),
    *(f"{name}:always" for name in (*PEERS, "mayfly")),
)

WORKLOADS = {
    one.name: one
    for one in [
        Workload(
            "paths",
            "ns per allocation and free, path by path (Table 4)",
            compiled("paths", [150], [45]),
            extra=("mayfly:fixed", "mayfly:lines"),
            has_memory=False,
        ),
        Workload(
            "sizes",
            "ns per allocation and free of 512 B to 16 KiB, also freed by another thread",
            compiled("sizes", [150], [20]),
            has_memory=False,
        ),
        Workload(
            "swing",
            "heap swinging between 1 MiB and 1 GiB, 1 object in 10,000 long-lived (section 9.6)",
            compiled("swing", [1024, 5_000_000], [128, 130_000], 240),
            extra=("mayfly:lines", "mayfly:oracle", "mayfly:lines-oracle", *ON_HUGE_PAGES),
        ),
        Workload(
            "callers",
            "a peak of requests and sessions that only a caller three frames up tells apart",
            compiled("callers", [640_000, 60, 160], [100_000, 60, 160]),
        ),
        Workload(
            "churn", "4 threads, random sizes and lifetimes", compiled("churn", [4, 10_000_000], [4, 700_000])
        ),
        Workload(
            "exchange",
            "4 threads, each frees what another made",
            compiled("exchange", [4, 4_000_000], [4, 400_000]),
        ),
        Workload(
            "handover",
            "threads exit and leave their objects to new ones",
            compiled("handover", [8, 300, 20_000], [8, 20, 20_000]),
        ),
        Workload(
            "large", "2 threads, objects of 8 KiB to 1 MiB", compiled("large", [2, 600_000], [2, 40_000])
        ),
        Workload(
            "redis",
            "Redis, 5,000 connections, 1000 B values: fill, serve, delete most, fill again",
            redis_run,
            extra=("mayfly:lines", *ON_HUGE_PAGES),
        ),
        Workload(
            "memcached",
            "memcached, 200 connections",
            lambda a, q: programs.memcached(a, 100_000 if q else 1_000_000),
            extra=("mayfly:lines", *ON_HUGE_PAGES),
        ),
        Workload(
            "compile", "g++ -O1 on template-heavy C++", lambda a, q: programs.compile_cpp(a, 2 if q else 12)
        ),
        Workload(
            "small",
            "true, python -c pass, sleep: what it costs to start and to be there",
            small.run,
            extra=("mayfly:lines", "mayfly:base", *ON_HUGE_PAGES),
        ),
        Workload("python", "Python with PYTHONMALLOC=malloc", lambda a, q: programs.python(a, 1 if q else 4)),
    ]
}
