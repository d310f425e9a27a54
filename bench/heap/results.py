"""From samples to results: medians, ratios to the best, geometric means, and all of it as flat JSON."""

import math
from dataclasses import dataclass, field
from statistics import median

from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.workload_list import WORKLOADS

# The figures every workload is compared by; lower is better in all of them.
COMPARED = {
    "time_ms": "time_ratio",
    "peak_rss_kib": "peak_rss_ratio",
    "rss_kib": "rss_ratio",
    "ranges_kib": "ranges_ratio",
    "translations": "translations_ratio",
}


@dataclass
class Results:
    allocators: list[Allocator]
    samples: dict[tuple[str, str], list[Numbers]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, workload: str, allocator: Allocator, numbers: Numbers) -> None:
        if "small_pages" in numbers:
            numbers["translations"] = numbers["small_pages"] + numbers["huge_pages"]
        if "own.rss_kib" in numbers:  # before the load
            numbers["own_kib"] = numbers["own.rss_kib"]
        self.samples.setdefault((workload, allocator.name), []).append(numbers)

    def of(self, workload: str, name: str, metric: str) -> list[float]:
        """All samples of one metric, empty when it was not measured or a run failed."""
        if (workload, name) in self.failures:
            return []
        return [one[metric] for one in self.samples.get((workload, name), []) if metric in one]

    def median(self, workload: str, name: str, metric: str) -> float | None:
        values = self.of(workload, name, metric)
        return median(values) if values else None

    def names(self, workload: str) -> list[str]:
        """Allocators with a result for this workload, in the order of the options."""
        return [one.name for one in self.allocators if self.of(workload, one.name, "time_ms")]

    def workloads(self) -> list[str]:
        return [name for name in WORKLOADS if self.names(name)]

    def best(self, workload: str, metric: str) -> float | None:
        """The lowest median; an oracle's does not count, as no program can have one."""
        values = [
            self.median(workload, name, metric) for name in self.names(workload) if "oracle" not in name
        ]
        values = [value for value in values if value]
        return min(values) if values else None

    def ratio(self, workload: str, name: str, metric: str) -> float | None:
        value, best = self.median(workload, name, metric), self.best(workload, metric)
        return value / best if value is not None and best else None

    def geometric_mean(self, name: str, metric: str) -> float | None:
        """The mean over all measured workloads that the metric belongs to; None if one of them is missing."""
        logs = []
        for workload in self.workloads():
            if metric == "peak_rss_kib" and not WORKLOADS[workload].has_memory:
                continue
            ratio = self.ratio(workload, name, metric)
            if not ratio:
                return None
            logs.append(math.log(ratio))
        return math.exp(sum(logs) / len(logs)) if logs else None

    def best_peer(self, metric: str) -> tuple[str, float] | None:
        """The peer with the lowest geometric mean. Variants do not take part: they did not run everywhere."""
        means = [
            (mean, one.name)
            for one in self.allocators
            if one.base != "mayfly" and not one.variant and (mean := self.geometric_mean(one.name, metric))
        ]
        return (min(means)[1], min(means)[0]) if means else None

    def redis_live_bytes(self, moment: str = "") -> float | None:
        """Redis' live bytes, by the leanest allocator's count: what the others round up is no live data."""
        counts = [self.median("redis", name, moment + "used_memory_bytes") for name in self.names("redis")]
        counts = [count for count in counts if count]
        return min(counts) if counts else None

    def redis_reduction(
        self, name: str = "mayfly", moment: str = "", unit: str = "ranges_kib", peer: str = "tcmalloc:huge"
    ) -> float | None:
        """How much less fragmentation an allocator has than the peer (LLAMA Table 3), in one unit: 2 MiB
        ranges, as the paper counts, or `rss_kib`."""
        live = self.redis_live_bytes(moment)
        ours, theirs = (self.median("redis", one, moment + unit) for one in (name, peer))
        if not (live and ours and theirs) or theirs * 1024 <= live:
            return None
        return (theirs - ours) * 1024 / (theirs * 1024 - live)

    def flat(self, machine: dict) -> dict:
        """Flat dotted keys: WORKLOAD.ALLOCATOR.METRIC, medians unless they end in _min or _max."""
        flat = dict(machine)
        for workload in self.workloads():
            for one in self.allocators:
                if one.name not in self.names(workload):
                    continue
                prefix = f"{workload}.{one.key}."
                runs = self.samples[workload, one.name]
                flat[prefix + "rounds"] = len(runs)
                for metric in runs[-1]:
                    if metric.startswith(("over_time.", "phase.")):
                        flat[prefix + metric] = runs[-1][metric]
                        continue
                    values = self.of(workload, one.name, metric)
                    flat[prefix + metric] = round(median(values), 3)
                    spread_matters = metric.endswith(("_ms", "_ns", "rss_kib", "ranges_kib", "_per_s"))
                    if len(values) > 1 and spread_matters:
                        flat[prefix + metric + "_min"] = round(min(values), 3)
                        flat[prefix + metric + "_max"] = round(max(values), 3)
                    if metric in COMPARED or metric.endswith("_ns"):
                        key = COMPARED.get(metric, metric.removesuffix("_ns") + "_ratio")
                        ratio = self.ratio(workload, one.name, metric)
                        if ratio:
                            flat[prefix + key] = round(ratio, 3)
        for moment in ("", "deleted."):
            live = self.redis_live_bytes(moment)
            if live:
                flat[f"redis.{moment}live_bytes"] = live
            # The name without a unit is of RSS.
            for unit, suffix in (("rss_kib", ""), ("ranges_kib", "_in_ranges")):
                reduction = self.redis_reduction(moment=moment, unit=unit)
                if reduction is not None:
                    key = f"redis.{moment}fragmentation_reduction_beside_tcmalloc_huge{suffix}"
                    flat[key] = round(reduction, 3)
        for one in self.allocators:
            for metric, key in (("time_ms", "time_ratio"), ("peak_rss_kib", "peak_rss_ratio")):
                mean = self.geometric_mean(one.name, metric)
                if mean and "oracle" not in one.name:
                    flat[f"geomean.{one.key}.{key}"] = round(mean, 3)
        for (workload, name), why in self.failures.items():
            flat[f"failed.{workload}.{name.replace(':', '_').replace('-', '_')}"] = why
        return flat
