"""Draws Memento's figures from bench/results/sim.json as SVG: one file for each of the paper's, whose average
is a hatched bar beside ours."""

import sys
import tomllib
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import save
from bench.outcome import RESULTS, ROOT, read
from bench.sim.paper import AVERAGES, GROUPS

PROGRAMS = tomllib.loads((ROOT / "bench/sim/runs.toml").read_text())["programs"]
COLOURS = ("#c0392b", "#4c78a8", "#6a9f58", "#e0b000", "#8e6bbf", "#c98b2e", "#8c8c8c", "#9ebcda", "#555555")
AVERAGE = {"functions": "func-avg", "Data Proc": "data-avg"}


def columns(results: dict, key: str) -> list[tuple[str, str]]:
    """Name and prefix of every program that has the key, then of the averages."""
    found = [(one["name"], f"{program}.{key}") for program, one in PROGRAMS.items()]
    stem = key.removesuffix("_percent")
    found += [(name, f"average.{group}.{stem}_percent") for group, name in AVERAGE.items()]
    return [(name, whole) for name, whole in found if whole in results]


def bars(results: dict, series: dict[str, str], title: str, file: str, ylabel: str) -> Path | None:
    """Bars beside one another for each program: a series is a label and its key."""
    keys = list(series.values())
    shown = columns(results, keys[0])
    if not shown:
        return None
    figure, axes = pyplot.subplots(figsize=(9.5, 3))
    width = 0.85 / len(series)
    for n, (label, key) in enumerate(series.items()):
        there = dict(columns(results, key))
        points = [
            (at + n * width, results[there[name]]) for at, (name, _) in enumerate(shown) if name in there
        ]
        if not points:
            continue
        axes.bar(*zip(*points, strict=True), width * 0.94, color=COLOURS[n], label=label)
        papers = [(name, AVERAGES.get(key)) for name in ("func-avg",)]
        papers.append(("data-avg", GROUPS.get(("Data Proc", key))))
        for name, average in papers:
            at = next((i for i, (other, _) in enumerate(shown) if other == name), None)
            if average and at is not None:
                axes.bar(
                    at + n * width,
                    average[0],
                    width * 0.94,
                    fill=False,
                    hatch="///",
                    edgecolor="#444444",
                    linewidth=0.6,
                )
    axes.plot([], [], color="#444444", label="hatched: the paper's average")
    return finish(figure, axes, shown, 0.425 - width / 2, title, ylabel, file)


def stack(results: dict, series: dict[str, str], title: str, file: str, ylabel: str) -> Path | None:
    """The series of a program upon one another."""
    shown = columns(results, next(iter(series.values())))
    if not shown:
        return None
    figure, axes = pyplot.subplots(figsize=(9.5, 3))
    bottoms, depths = [0.0] * len(shown), [0.0] * len(shown)
    for n, (label, key) in enumerate(series.items()):
        there = dict(columns(results, key))
        heights = [results[there[name]] if name in there else 0.0 for name, _ in shown]
        from_where = [bottoms[at] if height >= 0 else depths[at] for at, height in enumerate(heights)]
        axes.bar(range(len(shown)), heights, 0.7, bottom=from_where, color=COLOURS[n], label=label)
        # Losses hang below the axis: the sum is the part above less the part below.
        for at, height in enumerate(heights):
            (bottoms if height >= 0 else depths)[at] += height
    return finish(figure, axes, shown, 0, title, ylabel, file)


def finish(figure, axes, shown, middle: float, title: str, ylabel: str, file: str) -> Path:
    axes.axhline(0, color="#888888", linewidth=0.6)
    axes.set_xticks([at + middle for at in range(len(shown))], [name for name, _ in shown], fontsize=7)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return save(figure, file)


STEPS = (512, 1024, 1536, 2048, 2560, 3072, 3584, 4096)
WITHIN = (16, 32, 64, 128, 256)
# By file: the function that draws it, its title, its axis' label, and each series' label and key.
FIGURES = {
    "sizes": (
        stack,
        "Sizes of allocations (Memento Fig. 2)",
        "% of allocations",
        {f"to {end} bytes": f"sizes.to_{end}_bytes_percent" for end in STEPS}
        | {"larger": "sizes.larger_percent"},
    ),
    "lifetimes": (
        stack,
        "Freed within so many allocations of its class (Memento Fig. 3)",
        "% of allocations",
        {f"within {end}": f"lifetimes.within_{end}_percent" for end in WITHIN}
        | {"later": "lifetimes.longer_percent", "never": "lifetimes.never_percent"},
    ),
    "speedup": (
        bars,
        "Speed-up over the baseline (Memento Fig. 8)",
        "%",
        {
            "Memento": "speedup_percent",
            "its imports": "import.speedup_percent",
            "a warm call": "warm.speedup_percent",
            "9-way L1d": "iso_storage_speedup_percent",
            "Mallacc, idealised": "mallacc_speedup_percent",
        },
    ),
    "breakdown": (
        stack,
        "Where the speed-up comes from (Memento Fig. 9)",
        "% of the baseline's cycles",
        {
            "obj-alloc": "gain.object_alloc_percent",
            "obj-free": "gain.object_free_percent",
            "page management": "gain.page_management_percent",
            "bypass": "gain.bypass_percent",
            "the program's other cycles": "gain.program_percent",
            "the kernel's other cycles": "gain.kernel_percent",
        },
    ),
    "traffic": (
        bars,
        "DRAM traffic saved (Memento Fig. 10)",
        "%",
        {"all": "traffic_saved_percent", "by the bypass": "traffic_saved_by_bypass_percent"},
    ),
    "pages": (
        bars,
        "Physical pages saved (Memento Fig. 11)",
        "%",
        {
            "all": "pages_saved_percent",
            "the program's": "user_pages_saved_percent",
            "the kernel's": "kernel_pages_saved_percent",
            "pages taken again counted": "pages_saved_each_taking_percent",
        },
    ),
    "hot": (
        bars,
        "Hits in the HOT (Memento Fig. 12)",
        "%",
        {"obj-alloc": "hot.allocation_hits_percent", "obj-free": "hot.free_hits_percent"},
    ),
    "lists": (
        bars,
        "Operations that change a list of arenas (Memento Fig. 13)",
        "%",
        {"obj-alloc": "lists.allocations_percent", "obj-free": "lists.frees_percent"},
    ),
    "pricing": (
        bars,
        "Price saved (Memento Fig. 14)",
        "%",
        {"run time": "cost_saved_percent", "and requests": "cost_saved_with_requests_percent"},
    ),
}


def main() -> int:
    wanted = sys.argv[1:] or list(FIGURES)
    unknown = [name for name in wanted if name not in FIGURES]
    if unknown:
        print(f"figures: no figure {unknown[0]}: there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    source = RESULTS / "sim.json"
    try:
        results = read(source)
    except (OSError, ValueError) as error:
        print(f"figures: {source}: {error}; bench/sim/run writes it", file=sys.stderr)
        return 1
    for name in wanted:
        draw, title, ylabel, series = FIGURES[name]
        path = draw(results, series, title, f"sim-{name}", ylabel)
        print(path.relative_to(ROOT) if path else f"figures: {name}: the results have nothing for it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
