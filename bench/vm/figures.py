"""Draws the results as SVG beside the paper's figures 5, 6, 7 and 10."""

import re
import sys
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import draw_all, save
from bench.outcome import RESULTS, read

COLOURS = {
    "static": "#8c8c8c",
    "plain": "#c98b2e",
    "nodes": "#4c78a8",
    "ranges": "#8e5ea2",
    "hotmem": "#c0392b",
}


def series(results: dict, pattern: str) -> dict[str, list[tuple[float, float]]]:
    """Contender to points: the pattern's groups are the contender and the number on the horizontal axis."""
    found: dict[str, list[tuple[float, float]]] = {}
    for key, value in results.items():
        match = re.fullmatch(pattern, key)
        if match:
            found.setdefault(match[1], []).append((float(match[2]), value))
    return {name: sorted(points) for name, points in found.items()}


def draw_latency(results: dict) -> Path | None:
    """Figures 5 and 6: by size, on logarithmic axes, and by guest memory use."""
    by_size = series(results, r"unplug\.(\w+)\.(\d+)mib\.unplug_ms")
    by_use = series(results, r"usage\.(\w+)\.(\d+)percent\.unplug_ms")
    if not by_size and not by_use:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2))
    for axes, lines in ((left, by_size), (right, by_use)):
        for name, points in lines.items():
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, "o-", color=COLOURS[name], label=name, linewidth=1.4, markersize=4)
        axes.set_yscale("log")
        axes.set_ylabel("unplug latency, ms")
        axes.grid(axis="y", color="#eeeeee")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.set_xlabel("MiB unplugged from a full VM (Fig. 5)")
    right.set_xlabel("% of the VM's plugged memory in use (Fig. 6)")
    left.legend(frameon=False)
    return save(figure, "vm-latency")


def draw_steps(results: dict) -> Path | None:
    """Figure 7: cumulative CPU time of the vCPU that serves the steps."""
    times = series(results, r"steps\.(\w+)\.over_time\.(\d+)\.at_s")
    used = series(results, r"steps\.(\w+)\.over_time\.(\d+)\.cpu_s")
    if not used:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for name, points in used.items():
        xs = [0.0] + [at for _, at in times[name]]
        axes.plot(xs, [0.0] + [cpu for _, cpu in points], color=COLOURS[name], label=name, linewidth=1.4)
    axes.set_xlabel("seconds since the first step")
    axes.set_ylabel("CPU seconds of the vCPU")
    axes.set_title("A full VM shrinks step by step (Fig. 7)", loc="left")
    axes.legend(frameon=False)
    return save(figure, "vm-steps")


def draw_meanwhile(results: dict, experiment: str, unit: str, titles: tuple[str, str]) -> Path | None:
    """Figure 10: mean latency per second. `unit` is the results'. `titles`: title, and the event at 0."""
    times = series(results, rf"{experiment}\.(\w+)\.over_time\.(\d+)\.at_s")
    means = series(results, rf"{experiment}\.(\w+)\.over_time\.(\d+)\.mean_{unit}")
    if not means:
        return None
    title, first = titles
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for name, points in means.items():
        xs = [at for _, at in times[name]]
        ys = [value / {"us": 1000, "ms": 1}[unit] for _, value in points]
        axes.plot(xs, ys, "o-", color=COLOURS[name], label=name, linewidth=1.4, markersize=3)
    axes.axvline(0, color="#bbbbbb", linewidth=0.8)
    axes.set_ylim(0)
    axes.set_xlabel(f"seconds since the first of {first}")
    axes.set_ylabel("mean request latency, ms")
    axes.set_title(f"{title} (Fig. 10)", loc="left")
    axes.legend(frameon=False, ncols=2)
    return save(figure, f"vm-{experiment}")


PINNED = ("A co-located instance during unplugs", "four evictions")
FUNCTIONS = ("A function's requests while another's instances end", "another function's instances ends")


def draw(results: dict) -> list[Path | None]:
    of_functions = read(RESULTS / "vm-functions.json")
    return [
        draw_latency(results),
        draw_steps(results),
        draw_meanwhile(results, "interference", "us", PINNED),
        draw_meanwhile(of_functions, "colocated", "ms", FUNCTIONS),
    ]


if __name__ == "__main__":
    sys.exit(draw_all("vm", draw))
