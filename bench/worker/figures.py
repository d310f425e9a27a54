"""Draws what bench/worker/run found: memory of an instance by their number (UPM Fig. 5), of all (Fig. 6)."""

import sys
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import draw_all, save
from bench.outcome import RESULTS
from bench.worker.experiments import MODELS, VARIANTS

COLOURS = {"plain": "#8a94a3", "heap": "#3b6fd4", "merge": "#e0892b", "mayfly": "#12a07f"}


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
    return save(figure, RESULTS / "worker-memory.svg")


if __name__ == "__main__":
    sys.exit(draw_all("worker", lambda results: [memory(results)]))
