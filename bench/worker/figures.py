"""Draws the results of bench/worker/run: memory of an instance by their number (UPM Fig. 5), of all (Fig.
6); how fast a VM's memory is reclaimed, how long requests take (HotMem Fig. 8, 9)."""

import sys
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import draw_all, save
from bench.worker.experiments import MODELS, VARIANTS
from bench.worker.in_vm import INSTANCES, MODES

COLOURS = {
    "plain": "#8a94a3",
    "heap": "#3b6fd4",
    "merge": "#e0892b",
    "started": "#9b59b6",
    "mayfly": "#12a07f",
}
MODE_COLOURS = {"static": "#8c8c8c", "plain": "#c98b2e", "nodes": "#4c78a8", "hotmem": "#c0392b"}


def memory(results: dict) -> Path | None:
    drawn = [name for name in MODELS if any(key.startswith(f"memory.{name}.") for key in results)]
    if not drawn:
        return None
    rows = (("each_mib", "MiB of an instance"), ("available_drop_mib", "MiB of all, on the host"))
    rows = [one for one in rows if any(key.endswith(f".{one[0]}") for key in results)]
    figure, axes = pyplot.subplots(
        len(rows), len(drawn), figsize=(4 * len(drawn), 2.7 * len(rows)), squeeze=False, sharex=True
    )
    for column, function in enumerate(drawn):
        for row, (key, label) in enumerate(rows):
            axis = axes[row][column]
            for variant in VARIANTS:
                prefix = f"memory.{function}.{variant}."
                points = {
                    int(name.removeprefix(prefix).split(".")[0]): value
                    for name, value in results.items()
                    if name.startswith(prefix) and name.endswith(f".{key}")
                }
                if points:
                    counts = sorted(points)
                    values = [points[count] for count in counts]
                    axis.plot(counts, values, marker="o", ms=3, label=variant, color=COLOURS[variant])
            axis.set_ylim(bottom=0)
            axis.set_ylabel(label)
        axes[0][column].set_title(function)
        axes[-1][column].set_xlabel("instances")
    axes[0][0].legend(frameon=False)
    return save(figure, "worker-memory")


def reclaim(results: dict) -> Path | None:
    """Bars: reclaimed MiB/s (HotMem Fig. 8), P99 of requests (Fig. 9)."""
    drawn = [name for name in INSTANCES if any(f"vm.{mode}.{name}.p99_ms" in results for mode in MODES)]
    if not drawn:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3))
    panels = (
        ("mib_per_s", "reclaimed MiB/s (Fig. 8)", ("plain", "nodes", "hotmem")),
        ("p99_ms", "P99 of requests, ms (Fig. 9)", MODES),
    )
    for axis, (key, label, modes) in zip(axes, panels, strict=True):
        width = 0.8 / len(modes)
        for at, mode in enumerate(modes):
            found = {n: results.get(f"vm.{mode}.{name}.{key}") for n, name in enumerate(drawn)}
            places = [n - 0.4 + (at + 0.5) * width for n, value in found.items() if value is not None]
            values = [value for value in found.values() if value is not None]
            if not values:
                continue
            axis.bar(places, values, 0.9 * width, label=mode, color=MODE_COLOURS[mode])
        axis.set_xticks(range(len(drawn)), drawn)
        axis.set_yscale("log")
        axis.set_ylabel(label)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
    axes[1].legend(frameon=False, ncols=2)
    return save(figure, "worker-reclaim")


if __name__ == "__main__":
    sys.exit(draw_all("worker", lambda results: [memory(results), reclaim(results)]))
