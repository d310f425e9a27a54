"""From samples to results: medians and spreads, ratios between modes, flat JSON."""

import math
import statistics
from dataclasses import dataclass, field

from bench.vm.experiments import EXPERIMENTS, Samples
from bench.vm.guest import Contender

# The most loaded point that the paper reports an order of magnitude for (HotMem §6.1.1).
LOADED = "256mib"


@dataclass
class Results:
    contenders: list[Contender]
    samples: dict[tuple[str, str], Samples] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, experiment: str, contender: str, samples: Samples) -> None:
        """Adds the samples of another piece."""
        there = self.samples.setdefault((experiment, contender), {})
        for key, values in samples.items():
            there[key] = there.get(key, []) + values

    def of(self, experiment: str, contender: str, key: str) -> list[float]:
        return self.samples.get((experiment, contender), {}).get(key, [])

    def median(self, experiment: str, contender: str, key: str) -> float | None:
        values = self.of(experiment, contender, key)
        return statistics.median(values) if values else None

    def names(self, experiment: str) -> list[str]:
        return [one.name for one in self.contenders if (experiment, one.name) in self.samples]

    def points(self, experiment: str) -> list[str]:
        """The first parts of the keys, in the order they were measured: sizes, usages, settings."""
        found: dict[str, None] = {}
        for name in self.names(experiment):
            for key in self.samples[experiment, name]:
                point, dot, _ = key.partition(".")
                if dot and point != "over_time":
                    found[point] = None
        return list(found)

    def experiments(self) -> list[str]:
        return [name for name in EXPERIMENTS if self.names(name)]

    def ratio(self, experiment: str, key: str, over: str, under: str) -> float | None:
        """The first contender's number divided by the second's."""
        most, least = self.median(experiment, over, key), self.median(experiment, under, key)
        return most / least if most and least else None

    def migrated(self, contender: str) -> float | None:
        """All pages migrated in all measured unplugs of a contender."""
        found = [
            sum(values)
            for (_, name), samples in self.samples.items()
            if name == contender
            for key, values in samples.items()
            if key.endswith("migrated_pages")
        ]
        return sum(found) if found else None

    def flatness(self, contender: str) -> float | None:
        """How far unplug latency at any guest memory use is from the median over all of them, at most."""
        medians = [self.median("usage", contender, f"{point}.unplug_ms") for point in self.points("usage")]
        known = [one for one in medians if one]
        middle = statistics.median(known) if known else 0
        return max(abs(one / middle - 1) for one in known) if known else None

    def flat(self, machine: dict) -> dict:
        """Flat dotted keys: EXPERIMENT.CONTENDER.POINT.METRIC, medians with _min and _max beside times."""
        flat = dict(machine)
        for experiment in self.experiments():
            for one in self.contenders:
                for key, values in self.samples.get((experiment, one.name), {}).items():
                    name = f"{experiment}.{one.key}.{key}"
                    flat[name] = rounded(statistics.median(values))
                    if len(values) > 1:
                        flat[name + "_min"], flat[name + "_max"] = rounded(min(values)), rounded(max(values))
                        flat[name.removesuffix(".unplug_ms") + ".rounds"] = len(values)
        for one in self.contenders:
            p50 = self.median("unplug", one.name, f"{LOADED}.unplug_ms")
            if p50:
                flat[f"unplug.{one.key}.p50_ms"] = rounded(p50)
            if (moved := self.migrated(one.name)) is not None:
                flat[f"all.{one.key}.migrated_pages"] = moved
            if (flatness := self.flatness(one.name)) is not None:
                flat[f"usage.{one.key}.most_off_median_ratio"] = rounded(flatness)
        for (experiment, name), why in self.failures.items():
            flat[f"failed.{experiment}.{name.replace(':', '_')}"] = why
        return flat


def rounded(value: float) -> float:
    """Four significant digits, or whole numbers."""
    if value == 0 or not math.isfinite(value):
        return 0.0 if value == 0 else value
    return round(value, max(0, 3 - math.floor(math.log10(abs(value)))))
