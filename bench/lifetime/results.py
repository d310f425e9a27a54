"""From runs to results: fragmentation as the paper defines it, medians over rounds, flat JSON."""

from dataclasses import dataclass, field
from statistics import median

from bench.lifetime.process import Memory
from bench.lifetime.workloads import WORKLOADS, Run

# LLAMA Table 3 and §9.1, §9.5: the paper's results of each workload. MB; the slowdown beside TCMalloc.
PAPER = {
    "image": {"weighted": 96, "unweighted": 73, "tcmalloc": 664, "llama": 446, "live": 153, "reduction": 43},
    "inference": {
        "weighted": 98,
        "unweighted": 94,
        "tcmalloc": 282,
        "llama": 269,
        "live": 214,
        "reduction": 19,
    },
    "pipeline": {
        "weighted": 99,
        "unweighted": 78,
        "tcmalloc": 1964,
        "llama": 481,
        "live": 50,
        "reduction": 78,
    },
    "redis": {"weighted": 100, "unweighted": 94, "tcmalloc": 832, "llama": 312, "live": 115, "reduction": 73},
}
COMPARED = ("online", "model", "model_only", "paper", "paper_k1", "paper_k4")


# What is compared, by its name in keys: pages of 4 KiB, and whole ranges of 2 MiB as the paper counts.
UNITS = ("resident", "ranges")


def averages(memory: Memory) -> dict[str, float]:
    """The paper's average fragmentation (§2.1), in both units."""
    live = [mib for _, mib in memory.live]
    found = {}
    for key, curve in (
        ("fragmentation_average", memory.resident),
        ("fragmentation_average_ranges", memory.ranges),
    ):
        if curve and live:
            found[key] = (sum(mib for _, mib in curve) / len(curve)) / (sum(live) / len(live))
    return found


@dataclass
class Results:
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    oracle: dict[str, dict] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, workload: str, variant: str, run: Run) -> None:
        self.runs.setdefault((workload, variant), []).append(run)

    def workloads(self) -> list[str]:
        return [name for name in WORKLOADS if any(workload == name for workload, _ in self.runs)]

    def variants(self, workload: str) -> list[str]:
        return [variant for name, variant in self.runs if name == workload]

    def of(self, workload: str, variant: str, what: str) -> float | None:
        """The median over rounds of a number of the runs."""
        values = []
        for run in self.runs.get((workload, variant), []):
            value = run.speed.get(what) if what in run.speed else run.mib(what)
            if value is not None:
                values.append(value)
        return median(values) if values else None

    def live_mib(self, workload: str, moment: str) -> float | None:
        """Live memory, for all allocators. Each rounds up to its own sizes: the least is nearest."""
        values = [self.of(workload, variant, f"{moment}_live_mib") for variant in self.variants(workload)]
        return min((value for value in values if value), default=None)

    def fragmentation(
        self, workload: str, variant: str, moment: str = "end", unit: str = "resident"
    ) -> float | None:
        """Memory by live memory."""
        memory, live = self.of(workload, variant, f"{moment}_{unit}_mib"), self.live_mib(workload, moment)
        return memory / live if memory and live else None

    def reduction(self, workload: str, variant: str, beside: str, unit: str = "ranges") -> float | None:
        """The part of another's fragmentation that is avoided: (theirs - ours) / (theirs - live), Table 3. In
        one unit on both sides, the paper's if no other is named."""
        theirs, ours = (self.of(workload, one, f"end_{unit}_mib") for one in (beside, variant))
        live = self.live_mib(workload, "end")
        return (theirs - ours) / (theirs - live) if theirs and ours and live and theirs > live else None

    def slowdown(self, workload: str, variant: str) -> float | None:
        """Time beside tcmalloc's, less one."""
        theirs, ours = (self.of(workload, one, "requests_per_s") for one in ("tcmalloc", variant))
        return theirs / ours - 1 if theirs and ours else None

    def best_peer(self, workload: str, what: str) -> float | None:
        """The least of a number of all other allocators that ran."""
        peers = (variant for variant in self.variants(workload) if variant not in COMPARED)
        return min(filter(None, (self.of(workload, peer, what) for peer in peers)), default=None)

    def best(self, workload: str) -> str:
        """The variant of Mayfly to use: with a model if there is one."""
        return "model" if ("model" in self.variants(workload)) else "online"

    def flat(self, machine: dict) -> dict:
        flat = dict(machine)
        for workload in self.workloads():
            for moment in ("peak", "end"):
                live = self.live_mib(workload, moment)
                if live:
                    flat[f"{workload}.{moment}_live_mib"] = round(live, 2)
            for variant in self.variants(workload):
                flat |= self._flat_of(workload, variant)
            for key, value in self.oracle.get(workload, {}).items():
                if not key.startswith("mayfly.end."):
                    flat[f"{workload}.oracle.{key}"] = value
            for key, value in PAPER[workload].items():
                flat[f"{workload}.llama.{key}"] = value
        for workload, accuracy in self.accuracy.items():
            flat |= {f"{workload}.accuracy.{key}": value for key, value in accuracy.items()}
        for (workload, variant), why in self.failures.items():
            flat[f"failed.{workload}.{variant}"] = why
        return flat

    def _flat_of(self, workload: str, variant: str) -> dict:
        flat: dict = {}
        prefix, runs = f"{workload}.{variant}.", self.runs[workload, variant]
        flat[prefix + "rounds"] = len(runs)
        names = dict.fromkeys(name for run in runs for name in run.speed)
        sizes = [f"{moment}_{unit}_mib" for moment in ("peak", "end") for unit in (*UNITS, "live")]
        for what in [*names, *sizes, "end_huge_mib"]:
            flat[prefix + what] = round(self.of(workload, variant, what) or 0.0, 3)
        derived = {}
        for moment in ("peak", "end"):
            for unit, suffix in zip(UNITS, ("", "_ranges"), strict=True):
                found = self.fragmentation(workload, variant, moment, unit)
                derived[f"fragmentation_{moment}{suffix}"] = found
        derived |= averages(runs[-1].memory)
        if variant in COMPARED:
            flat |= {prefix + key: value for key, value in runs[-1].heap.items()}
            for beside, key in (
                ("tcmalloc", "beside_tcmalloc"),
                ("tcmalloc_returning", "as_the_paper_counts"),
            ):
                for unit in UNITS:
                    found = self.reduction(workload, variant, beside, unit)
                    derived[f"reduction_{key}.{unit}"] = found
            derived["slowdown_beside_tcmalloc"] = self.slowdown(workload, variant)
        flat |= {prefix + key: round(value, 4) for key, value in derived.items() if value is not None}
        memory = runs[-1].memory
        for name, curve in (("resident", memory.resident), ("ranges", memory.ranges), ("live", memory.live)):
            if not curve:
                continue
            flat[f"{prefix}over_time.{name}.at_s"] = [round(at, 2) for at, _ in curve]
            flat[f"{prefix}over_time.{name}.mib"] = [round(mib, 1) for _, mib in curve]
        flat[prefix + "phases.at_s"] = [round(at, 2) for at, _ in memory.phases]
        flat[prefix + "phases.name"] = [name for _, name in memory.phases]
        return flat
