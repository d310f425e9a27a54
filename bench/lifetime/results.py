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
COMPARED = ("online", "model", "model_only")


def averages(memory: Memory) -> dict[str, float]:
    """The paper's average fragmentation (§2.1), by the pages that are used and by small ones."""
    live = [mib for _, mib in memory.live]
    found = {}
    for key, curve in (
        ("fragmentation_average", memory.resident),
        ("fragmentation_average_small", memory.small),
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
            value = run.speed.get(what) if what in run.speed else getattr(run, what, None)
            if value is not None:
                values.append(value)
        return median(values) if values else None

    def live_mib(self, workload: str, moment: str) -> float | None:
        """Live memory, for all allocators. Each rounds up to its own sizes: the least is nearest."""
        values = [self.of(workload, variant, f"{moment}_live_mib") for variant in self.variants(workload)]
        return min((value for value in values if value), default=None)

    def fragmentation(self, workload: str, variant: str, moment: str = "end") -> float | None:
        """Resident memory by live memory."""
        resident, live = self.of(workload, variant, f"{moment}_resident_mib"), self.live_mib(workload, moment)
        return resident / live if resident and live else None

    def reduction(self, workload: str, variant: str, beside: str) -> float | None:
        """The part of another's fragmentation that is avoided: (theirs - ours) / (theirs - live), Table 3."""
        theirs, ours = (self.of(workload, one, "end_resident_mib") for one in (beside, variant))
        live = self.live_mib(workload, "end")
        return (theirs - ours) / (theirs - live) if theirs and ours and live and theirs > live else None

    def slowdown(self, workload: str, variant: str) -> float | None:
        """Time beside tcmalloc's, less one."""
        theirs, ours = (self.of(workload, one, "requests_per_s") for one in ("tcmalloc", variant))
        return theirs / ours - 1 if theirs and ours else None

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
                flat[f"{workload}.paper.{key}"] = value
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
        for what in [*names, "peak_resident_mib", "peak_live_mib", "end_resident_mib", "end_live_mib"]:
            flat[prefix + what] = round(self.of(workload, variant, what) or 0.0, 3)
        derived = {
            "fragmentation_peak": self.fragmentation(workload, variant, "peak"),
            "fragmentation_end": self.fragmentation(workload, variant),
        }
        derived |= averages(runs[-1].memory)
        if variant in COMPARED:
            flat |= {prefix + key: value for key, value in runs[-1].heap.items()}
            derived["reduction_beside_tcmalloc"] = self.reduction(workload, variant, "tcmalloc")
            derived["reduction_as_the_paper_counts"] = self.reduction(workload, variant, "tcmalloc_returning")
            derived["slowdown_beside_tcmalloc"] = self.slowdown(workload, variant)
        flat |= {prefix + key: round(value, 4) for key, value in derived.items() if value is not None}
        memory = runs[-1].memory
        for name, curve in (("resident", memory.resident), ("small", memory.small), ("live", memory.live)):
            if not curve:
                continue
            flat[f"{prefix}over_time.{name}.at_s"] = [round(at, 2) for at, _ in curve]
            flat[f"{prefix}over_time.{name}.mib"] = [round(mib, 1) for _, mib in curve]
        flat[prefix + "phases.at_s"] = [round(at, 2) for at, _ in memory.phases]
        flat[prefix + "phases.name"] = [name for _, name in memory.phases]
        return flat
