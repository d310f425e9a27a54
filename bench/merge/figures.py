"""Draws the results as SVG, one file for each of the paper's figures: potential sharing (Fig. 1), memory
of an instance (5) and of all (6), time by size (7), cold start (8), where the time goes (Table I); and the
regions."""

import math
import sys
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import draw_all, save
from bench.merge import models, tables
from bench.merge.regions import METHODS, PATTERNS

# One colour for each method wherever it appears.
COLOURS = {
    "nothing": "#8c8c8c",
    "none": "#8c8c8c",
    "ksm_default": "#c98b2e",
    "ksm_best": "#e0b060",
    "mmap": "#4c78a8",
    "advise": "#e8a49c",
    "pack": "#d9705f",
    "all": "#c0392b",
    "process": "#6d1f16",
    "engine": "#c0392b",
    "engine_at_once": "#d9705f",
}
LABELS = {
    "nothing": "nothing",
    "mmap": "torch.load(mmap=True)",
    "advise": "advise",
    "pack": "pack, advise",
    "all": "pack, advise, libraries' tables too",
    "process": "all memory, no ASLR",
    "engine_at_once": "engine, all at once",
    "ksm_default": "KSM, default",
    "ksm_best": "KSM, fastest",
}
TITLES = {
    "resnet50": "ResNet-50",
    "alexnet": "AlexNet",
    "minilm": "MiniLM",
    "opennsfw": "open_nsfw (ONNX Runtime)",
    "resnet50-debian": "ResNet-50 (PyTorch 1.13)",
    "alexnet-debian": "AlexNet (PyTorch 1.13)",
    "page": "HTML page",
    "thumbnail": "thumbnail",
    "dna": "DNA as a line",
    "bfs": "search of a graph",
}
STEP_COLOURS = [
    "#4c78a8",
    "#6a9f58",
    "#7d5ba6",
    "#c98b2e",
    "#3a9a9a",
    "#9c755f",
    "#b07aa1",
    "#c0392b",
    "#bbbbbb",
]


def stack(axes, bars: list[str], parts: dict[tuple[str, str], list[float]], least=math.inf) -> list[float]:
    """Bars of parts: their label, their colour, and the width of each in each bar, which is printed from
    `least` on. Returns the bars' ends."""
    left = [0.0] * len(bars)
    for (label, colour), widths in parts.items():
        axes.barh(bars, widths, left=left, color=colour, label=label, height=0.7)
        for bar, at, width in zip(bars, left, widths, strict=True):
            if width > least:
                axes.annotate(f"{width:.0f}", (at + width / 2, bar), ha="center", va="center", fontsize=7)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    return left


def draw_sharing(flat: dict) -> Path | None:
    """Fig. 1, with the paper's order of the classes."""
    bars = {}
    for network in [*models.NETWORKS, *models.FUNCTIONS]:
        for aslr, note in (("aslr", ""), ("no_aslr", "\nno ASLR")):
            if f"sharing.{network}.{aslr}.all_mib" in flat:
                bars[TITLES[network] + note] = f"sharing.{network}.{aslr}"
    if not bars:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(bars) + 1.2))
    classes = {
        "volatile": ("volatile", "#d0d0d0"),
        "shared": ("shared already", "#4c78a8"),
        "identical_anonymous": ("identical, anonymous", "#c0392b"),
        "identical_file": ("identical, of files", "#e8a49c"),
    }
    parts = {shown: [flat[f"{one}.{name}_mib"] for one in bars.values()] for name, shown in classes.items()}
    stack(axes, list(bars), parts, 25)
    axes.set_xlabel("MiB an instance, of two (UPM Fig. 1)")
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1))
    return save(figure, "merge-sharing")


def draw_by_count(flat: dict, metric: str, label: str, name: str) -> Path | None:
    """Fig. 5 and 6: a panel for each network, a line for each method."""
    networks = [n for n in models.NETWORKS if any(k.startswith(f"models.{n}.nothing.") for k in flat)]
    if not networks:
        return None
    figure, all_axes = pyplot.subplots(1, len(networks), figsize=(3.1 * len(networks), 3.2), squeeze=False)
    lines = {}
    for axes, network in zip(all_axes[0], networks, strict=True):
        for method in tables.methods_of(network):
            points = [
                (count, flat[key])
                for count in models.COUNTS
                if (key := f"models.{network}.{method}.{count}.{metric}") in flat
            ]
            if points:
                style = "o-" if len(points) > 1 else "D"
                (lines[method],) = axes.plot(
                    *zip(*points, strict=True), style, color=COLOURS[method], markersize=4
                )
        axes.set_title(TITLES[network], loc="left", fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_xticks(models.COUNTS, models.COUNTS)
        axes.set_xlabel("instances")
        axes.set_ylim(0)
    all_axes[0][0].set_ylabel(label)
    figure.legend(
        lines.values(),
        [LABELS[m] for m in lines],
        loc="lower center",
        ncols=4,
        frameon=False,
        bbox_to_anchor=(0.5, 1),
    )
    figure.tight_layout()
    return save(figure, name)


def draw_sizes(flat: dict) -> Path | None:
    """Fig. 7, with a straight line through the origin and the largest size's point: linear, or not."""
    sizes = sorted({int(key.split(".")[1]) for key in flat if key.startswith("sizes.")})
    if not sizes:
        return None
    figure, axes = pyplot.subplots(figsize=(5.5, 3.6))
    for call, label, colour in (
        ("first", "first call: adds its pages", "#4c78a8"),
        ("second", "second call: merges", "#c0392b"),
    ):
        middle = [flat[f"sizes.{mib}.{call}_ms"] for mib in sizes]
        low = [flat[f"sizes.{mib}.{call}_ms"] - flat[f"sizes.{mib}.{call}_min_ms"] for mib in sizes]
        high = [flat[f"sizes.{mib}.{call}_max_ms"] - flat[f"sizes.{mib}.{call}_ms"] for mib in sizes]
        axes.errorbar(
            sizes, middle, yerr=(low, high), fmt="o", color=colour, label=label, capsize=3, markersize=4
        )
        axes.plot(
            [sizes[0], sizes[-1]],
            [middle[-1] * sizes[0] / sizes[-1], middle[-1]],
            color=colour,
            linewidth=0.7,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, sizes)
    axes.set_xlabel("MiB advised (UPM Fig. 7)")
    axes.set_ylabel("ms (bars: fastest and slowest; line: proportional)")
    axes.legend(frameon=False)
    return save(figure, "merge-sizes")


def draw_cold(flat: dict) -> Path | None:
    """Fig. 8: where a cold start's time goes."""
    bars = {}
    for network in models.NETWORKS:
        for method in models.METHODS[network]:
            for which, note in (("first", ", the first"), ("later", "")):
                if f"cold.{network}.{method}.{which}.total_ms" in flat:
                    bars[f"{TITLES[network]}: {LABELS[method]}{note}"] = f"cold.{network}.{method}.{which}"
    if not bars:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 0.33 * len(bars) + 1))
    steps = {
        "import": ("import", "#d0d0d0"),
        "load": ("load", "#8c8c8c"),
        "first_answer": ("first answer", "#4c78a8"),
        "pack": ("pack", "#e8a49c"),
        "advise": ("advise", "#c0392b"),
    }
    parts = {
        shown: [flat.get(f"{one}.{step}_ms", 0) for one in bars.values()] for step, shown in steps.items()
    }
    for (bar, prefix), end in zip(bars.items(), stack(axes, list(bars), parts), strict=True):
        axes.annotate(f" {flat[f'{prefix}.total_ms']:.0f}", (end, bar), va="center", fontsize=7)
    axes.set_xlabel(
        "ms from the start of Python, medians; the number: with starting the process (UPM Fig. 8)"
    )
    axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.35, 1))
    return save(figure, "merge-cold")


def draw_where(flat: dict) -> Path | None:
    """Table I as bars."""
    columns = tables.where_the_time_goes(flat)
    if not columns:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(columns) + 1))
    parts = {
        (label, colour): [tables.share(flat, prefix, step) for prefix in columns.values()]
        for (step, label), colour in zip(tables.STEPS.items(), STEP_COLOURS, strict=True)
    }
    stack(axes, list(columns), parts, 4)
    axes.set_xlabel("% of the call's time (UPM Table I)")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1), fontsize=8)
    return save(figure, "merge-where")


def draw_regions(flat: dict) -> Path | None:
    """Memory beside the ideal, and CPU by process."""
    bars = [
        (pattern, method)
        for pattern in PATTERNS
        for method in METHODS
        if f"regions.{pattern}.{method}.memory_mib" in flat
    ]
    if not bars:
        return None
    names = [f"{LABELS.get(method, method)}, {pattern}" for pattern, method in bars]
    figure, (memory, cpu) = pyplot.subplots(1, 2, figsize=(9, 0.4 * len(bars) + 1.2), sharey=True)
    left = [0.0] * len(bars)
    for row, (pattern, method) in enumerate(bars):
        used, ideal = (flat[f"regions.{pattern}.{method}.{key}_mib"] for key in ("memory", "ideal"))
        memory.barh(row, used, color=COLOURS[method], height=0.7)
        memory.plot([ideal, ideal], [row - 0.4, row + 0.4], color="black", linewidth=1.2)
        memory.annotate(f" {used:.0f}", (used, row), va="center", fontsize=7)
    for who, colour in (("client", "#e8a49c"), ("daemon", "#c0392b"), ("ksmd", "#c98b2e")):
        widths = [flat.get(f"regions.{pattern}.{method}.{who}_cpu_s", 0) for pattern, method in bars]
        cpu.barh(range(len(bars)), widths, left=left, color=colour, label=who, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, (pattern, method) in enumerate(bars):
        part = flat.get(f"regions.{pattern}.{method}.merged_percent")
        note = "" if part is None or part > 98 else f", {part:.0f}% merged when stopped"
        took = flat[f"regions.{pattern}.{method}.wall_s"]
        cpu.annotate(f" {left[row]:.2f} s, in {took:.1f} s{note}", (left[row], row), va="center", fontsize=7)
    memory.set_yticks(range(len(bars)), names)
    memory.invert_yaxis()
    memory.set_xlabel("MiB of all regions (line: ideal)")
    cpu.set_xlabel("CPU seconds of everybody")
    cpu.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return save(figure, "merge-regions")


def draw(flat: dict) -> list[Path | None]:
    return [
        draw_sharing(flat),
        draw_by_count(flat, "each_mib", "MiB an instance (PSS; UPM Fig. 5)", "merge-memory"),
        draw_by_count(flat, "system_mib", "MiB of all together (UPM Fig. 6)", "merge-system"),
        *(one(flat) for one in (draw_sizes, draw_cold, draw_where, draw_regions)),
    ]


if __name__ == "__main__":
    sys.exit(draw_all("merge", draw))
