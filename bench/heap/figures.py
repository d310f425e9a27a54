"""Draws the results as SVG: swing beside the paper's Fig. 12b, ratios by workload, Redis over time."""

import re
import sys
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import draw_all, save
from bench.heap.workload_list import PAIRS, WORKLOADS

# From the text of LLAMA §9.6, its own runs: MB at the end with 4 KB and with 2 MB pages.
PAPER = {"TCMalloc (paper, about)": (512, 1024), "Mesh (paper)": (91.7, 558), "LLAMA (paper)": (22, 22)}

# One colour for each allocator wherever it appears.
COLOURS = {
    "glibc": "#8c8c8c",
    "jemalloc": "#c98b2e",
    "tcmalloc": "#4c78a8",
    "mimalloc": "#6a9f58",
    "mayfly": "#c0392b",
}
OTHERS = ["#7d5ba6", "#3a9a9a", "#b07aa1", "#9c755f"]


def colour(name: str) -> str:
    base = re.split(r"[_:]", name)[0]
    return COLOURS.get(base) or OTHERS[sum(map(ord, base)) % len(OTHERS)]


def measured(results: dict, workload: str, metric: str) -> dict[str, float]:
    """Allocator to value, in the order of the result file."""
    found = {}
    for key, value in results.items():
        parts = key.split(".", 2)
        if len(parts) == 3 and parts[0] == workload and parts[2] == metric:
            found[parts[1]] = value
    return found


def draw_swing(results: dict) -> Path | None:
    """Fig. 12b: what is left at the end, as 4 KiB pages and as 2 MiB pages."""
    resident = measured(results, "swing", "rss_kib")
    whole = measured(results, "swing", "ranges_kib")
    # As results before have it: stacks and libraries' data included.
    whole |= {name: size / 1024 for name, size in measured(results, "swing", "resident_2m_bytes").items()}
    if not resident:
        return None
    bars = dict(PAPER)
    for name in resident:
        if name.endswith("_always"):
            continue  # in the tables; as bars they would be too many
        bars[name.replace("_", ":", 1)] = (resident[name] / 1024, whole.get(name, 0) / 1024)
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(bars) + 1))
    for row, (name, (small, large)) in enumerate(bars.items()):
        paper = name in PAPER
        shade = "#d0d0d0" if paper else colour(name)
        axes.barh(row - 0.2, small, 0.38, color=shade, hatch="//" if paper else None, edgecolor="white")
        axes.barh(
            row + 0.2, large, 0.38, color=shade, alpha=0.55, hatch="//" if paper else None, edgecolor="white"
        )
        axes.annotate(f" {small:.0f}", (small, row - 0.2), va="center", fontsize=7)
        axes.annotate(f" {large:.0f}", (large, row + 0.2), va="center", fontsize=7)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlabel("MiB at the end (upper bar: resident; lower bar: 2 MiB ranges with anything resident)")
    axes.set_title("5 MB of long-lived objects after the heap swung to 1 GiB (LLAMA §9.6)", loc="left")
    return save(figure, "heap-swing")


def draw_ratios(results: dict) -> Path | None:
    """Time and peak RSS of every workload as ratios to the best, one dot an allocator."""
    panels = {"time_ratio": "time / best", "peak_rss_ratio": "peak RSS / best"}
    workloads = [name for name in WORKLOADS if measured(results, name, "time_ratio")]
    if not workloads:
        return None
    figure, all_axes = pyplot.subplots(1, 2, figsize=(9, 0.4 * len(workloads) + 1.6), sharey=True)
    seen = {}
    for axes, (metric, label) in zip(all_axes, panels.items(), strict=True):
        for row, workload in enumerate([*workloads, "geomean"]):
            for name, ratio in measured(results, workload, metric).items():
                if "_" in name or (metric == "peak_rss_ratio" and workload in PAIRS):
                    continue
                size = 60 if name == "mayfly" else 28
                seen[name] = axes.scatter(
                    ratio, row, s=size, color=colour(name), zorder=3 if name == "mayfly" else 2
                )
        axes.axvline(1, color="#cccccc", zorder=1)
        axes.axhline(len(workloads) - 0.5, color="#cccccc", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.set_xlabel(f"{label} (lower is better)")
        axes.grid(axis="y", color="#eeeeee")
    all_axes[0].set_yticks(range(len(workloads) + 1), [*workloads, "geometric mean"])
    all_axes[0].invert_yaxis()
    figure.legend(seen.values(), seen.keys(), loc="upper center", ncols=len(seen), frameon=False)
    return save(figure, "heap-ratios")


def draw_over_time(curves: dict[str, list[tuple[float, float]]], live_mib: float, name: str) -> Path:
    figure, axes = pyplot.subplots(figsize=(8, 3.2))
    for whole, curve in curves.items():
        short = whole.removeprefix("redis-server on ").partition(":")[0].replace("_", ":")
        style = "-" if ":" not in short else "--"
        axes.plot(
            [x for x, _ in curve],
            [y for _, y in curve],
            style,
            color=colour(short),
            label=short,
            linewidth=1.4,
        )
    axes.axhline(live_mib, color="#555555", linewidth=0.8, linestyle=":", label="live data at the end")
    axes.set_xlabel("seconds")
    axes.set_ylabel("resident MiB")
    axes.set_ylim(0)
    axes.set_title("Redis: fill, serve, delete most, fill again, delete most again", loc="left")
    axes.legend(frameon=False, ncols=3, fontsize=8)
    return save(figure, name)


def draw_redis(results: dict) -> Path | None:
    curves: dict[str, list[tuple[float, float]]] = {}
    for key, value in results.items():
        found = re.fullmatch(r"redis\.(\w+)\.over_time\.(\d+)\.rss_mib", key)
        if found:
            at = results[f"redis.{found[1]}.over_time.{found[2]}.at_s"]
            curves.setdefault(found[1], []).append((at, value))
    live = results.get("redis.live_bytes")
    return draw_over_time(curves, live / (1 << 20), "heap-redis") if curves and live else None


if __name__ == "__main__":
    draw = (draw_swing, draw_ratios, draw_redis)
    sys.exit(draw_all("heap", lambda results: [one(results) for one in draw]))
