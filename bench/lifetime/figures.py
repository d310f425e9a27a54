"""Draws the results as SVG, one file for each of the paper's figures: tcmalloc on small and on huge pages
(Fig. 1), lifetimes (2), memory over time (8), right lifetimes (9), the model's time (11b), Table 3."""

import sys
from pathlib import Path

from matplotlib import pyplot

from bench.drawing import draw_all, save
from bench.lifetime.results import PAPER
from bench.lifetime.workloads import WORKLOADS

# One colour for each variant wherever it appears.
COLOURS = {
    "tcmalloc": "#4c78a8",
    "tcmalloc_returning": "#9ebcda",
    "tcmalloc_small": "#e0b000",
    "online": "#e8998d",
    "model_only": "#8e6bbf",
    "model": "#c0392b",
    "live": "#555555",
}
LABELS = {
    "tcmalloc": "tcmalloc, huge pages",
    "tcmalloc_returning": "tcmalloc, 2 MiB ranges as the paper counts",
    "online": "Mayfly, online",
    "model_only": "Mayfly, model only",
    "model": "Mayfly, model and online",
}
CLASSES = ("10ms", "100ms", "1s", "10s", "100s", "1000s", "inf")


def unit_of(variant: str) -> str:
    """The unit that a variant is drawn in: the paper's count of tcmalloc's pages is of 2 MiB ranges."""
    return "ranges" if variant == "tcmalloc_returning" else "resident"


def curve(results: dict, workload: str, variant: str, what: str = "resident") -> tuple[list, list] | None:
    prefix = f"{workload}.{variant}.over_time.{what}."
    at, mib = results.get(prefix + "at_s"), results.get(prefix + "mib")
    return (at, mib) if at else None


def measured(results: dict, names) -> list[str]:
    """The workloads with results of one of these variants or keys."""
    return [
        name for name in WORKLOADS if any(key.startswith(f"{name}.{one}") for key in results for one in names)
    ]


def draw_pages(results: dict) -> Path | None:
    """Fig. 1: the image server on tcmalloc; its pages when they are small, and when they are huge."""
    huge, small = (
        curve(results, "image", "tcmalloc_returning", "ranges"),
        curve(results, "image", "tcmalloc_returning"),
    )
    live = curve(results, "image", "tcmalloc_returning", "live")
    if not (huge and live):
        return None
    figure, axes = pyplot.subplots(figsize=(8, 3.2))
    axes.plot(
        *huge, color=COLOURS["tcmalloc"], label="huge pages (2 MiB) with anything on them", linewidth=1.3
    )
    if small:
        axes.plot(*small, color=COLOURS["tcmalloc_small"], label="small pages (4 KiB)", linewidth=1.3)
    axes.fill_between(*live, color="#dddddd", label="live", linewidth=0)
    finish(axes, "Image server on tcmalloc: pages that are occupied (LLAMA Fig. 1)")
    return save(figure, "lifetime-pages")


def draw_lifetimes(results: dict) -> Path | None:
    """Fig. 2: the share of objects that live longer than each class."""
    names = measured(results, ["oracle.lifetimes"])
    if not names:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 3.4))
    for name in names:
        counts = [results[f"{name}.oracle.lifetimes.{one}.objects"] for one in CLASSES]
        left = [100 * sum(counts[n + 1 :]) / sum(counts) for n in range(len(counts) - 1)]
        axes.plot(
            CLASSES[:-1],
            [max(value, 1e-5) for value in left],
            "o-",
            label=WORKLOADS[name].title,
            linewidth=1.3,
        )
    axes.set_yscale("log")
    axes.set_xlabel("lifetime longer than")
    axes.set_ylabel("% of objects")
    axes.set_title("The long tail of lifetimes (LLAMA Fig. 2)", loc="left")
    axes.legend(frameon=False, fontsize=8)
    return save(figure, "lifetime-lifetimes")


def draw_over_time(results: dict) -> Path | None:
    """Fig. 8, for every workload: resident memory over time by variant, and live memory."""
    names = measured(results, LABELS)
    if not names:
        return None
    figure, all_axes = pyplot.subplots(len(names), 1, figsize=(8, 2.7 * len(names)), squeeze=False)
    for axes, name in zip(all_axes[:, 0], names, strict=True):
        for variant, label in LABELS.items():
            found = curve(results, name, variant, unit_of(variant))
            if found:
                axes.plot(*found, color=COLOURS[variant], label=label, linewidth=1.3)
        live = curve(results, name, "model", "live") or curve(results, name, "online", "live")
        if live:
            axes.fill_between(*live, color="#dddddd", label="live", linewidth=0)
        finish(axes, f"{WORKLOADS[name].title} (LLAMA Fig. 8)" if name == "image" else WORKLOADS[name].title)
    figure.tight_layout()
    return save(figure, "lifetime-memory")


def draw_oracle(results: dict) -> Path | None:
    """Fig. 9: with right lifetimes, beside the least that any allocator could have."""
    names = measured(results, ["oracle.timeline"])
    if not names:
        return None
    figure, all_axes = pyplot.subplots(len(names), 1, figsize=(8, 2.5 * len(names)), squeeze=False)
    curves = {"mayfly.2MiB": ("right lifetimes", COLOURS["model"]), "packed.2MiB": ("packed", "#6a9f58")}
    for axes, name in zip(all_axes[:, 0], names, strict=True):
        for key, (label, colour) in {**curves, "live": ("live", COLOURS["live"])}.items():
            at = results.get(f"{name}.oracle.timeline.{key}.time_ms")
            if at:
                mib = [one / (1 << 20) for one in results[f"{name}.oracle.timeline.{key}.bytes"]]
                axes.plot([one / 1000 for one in at], mib, color=colour, label=label, linewidth=1.1)
        title = "with right lifetimes, from a trace"
        finish(axes, f"{WORKLOADS[name].title} {title} (LLAMA Fig. 9)")
    figure.tight_layout()
    return save(figure, "lifetime-oracle")


def draw_table_3(results: dict) -> Path | None:
    """Table 3 as bars: memory in the steady state by live memory, ours and the paper's."""
    names = measured(results, LABELS)
    if not names:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 3.4))
    for group, name in enumerate(names):
        paper = PAPER[name]
        bars = [("paper: tcmalloc", paper["tcmalloc"] / paper["live"], "#bbbbbb", "//")]
        bars.append(("paper: LLAMA", paper["llama"] / paper["live"], "#888888", "//"))
        for variant, label in LABELS.items():
            suffix = "_ranges" if unit_of(variant) == "ranges" else ""
            value = results.get(f"{name}.{variant}.fragmentation_end{suffix}")
            if value:
                bars.append((label, value, COLOURS[variant], None))
        width = 0.85 / len(bars)
        for n, (label, value, colour, hatch) in enumerate(bars):
            place = group + n * width
            axes.bar(
                place, value, width * 0.92, color=colour, hatch=hatch, label=label if group == 0 else None
            )
            axes.annotate(f"{value:.1f}", (place, value), ha="center", va="bottom", fontsize=6)
    axes.axhline(1, color="#cccccc", linewidth=0.8)
    axes.set_xticks([n + 0.35 for n in range(len(names))], [WORKLOADS[name].title for name in names])
    axes.set_ylabel("resident pages (or ranges) / live")
    axes.set_title("Memory in the steady state (LLAMA Table 3)", loc="left")
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return save(figure, "lifetime-steady")


def draw_model_time(results: dict) -> Path | None:
    """Fig. 11b: the time of a prediction by the depth of the stack."""
    curves = {}
    for hidden in (64, 16):
        frames = results.get(f"model.{hidden}.frames")
        if frames:
            curves[f"LSTM {hidden}"] = (frames, results[f"model.{hidden}.us"])
    if not curves:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 3))
    for label, found in curves.items():
        axes.plot(*found, "o-", label=label, markersize=3)
    axes.axhline(144, color="#bbbbbb", linestyle="--", label="paper, LSTM 64 (Table 4)")
    axes.set_yscale("log")
    finish(axes, "Time of one prediction (LLAMA Fig. 11b)", "frames on the stack", "µs")
    return save(figure, "lifetime-model")


def finish(axes, title: str, across: str = "seconds", up: str = "MiB") -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if up == "MiB":
        axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=9)
    axes.legend(frameon=False, ncols=3, fontsize=7)


ALL = (draw_pages, draw_lifetimes, draw_over_time, draw_oracle, draw_table_3, draw_model_time)


if __name__ == "__main__":
    sys.exit(draw_all("lifetime", lambda results: [draw(results) for draw in ALL]))
