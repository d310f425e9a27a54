"""The output of every comparison: numbers in bench/results, tables for people, and goals beside results."""

import json
import lzma
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
# Values over time, which only a plot has, spreads, and parts of the memory of so many instances. They are
# most of some results, and lie compressed.
SERIES = re.compile(
    r"\.(over_time|timeline)\.|_(min|max)$|\.\d+\.(rss|pss|private|anonymous|anonymous_and_store|available_drop)_mib$"
)


class BenchError(Exception):
    """A fault that the user can mend, or a measured program that crashed, hung or answered wrong: one
    line."""


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each metric of the first run; with _min and _max where there are several rounds."""
    flat: dict[str, float] = {"rounds": len(runs)}
    for metric in runs[0]:
        values = [run[metric] for run in runs if metric in run]
        flat[metric] = round(median(values), 3)
        if len(values) > 1:
            flat[metric + "_min"], flat[metric + "_max"] = min(values), max(values)
    return flat


def percentile(values: Sequence[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass
class Shown:
    """One goal, and whether one run met it."""

    what: str
    wanted: str
    measured: str
    met: bool


def at_most(what: str, limit: float, value: float, unit: str) -> Shown:
    return Shown(what, f"<= {limit:g}{unit}", f"{value:.3g}{unit}", value <= limit)


def at_least(what: str, limit: float, value: float, unit: str) -> Shown:
    return Shown(what, f">= {limit:g}{unit}", f"{value:.3g}{unit}", value >= limit)


def table(rows: Sequence[Sequence[str]], out=None) -> None:
    """The first row is the heading; the first column goes left, the others right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        print("  " + "  ".join(cells).rstrip(), file=out)


def figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def grid(title: str, flat: dict, rows: Mapping[str, str], head: str, columns: str, digits: int = 1) -> None:
    """A titled table of results. `head` is its first line. A column is a key that follows the row's part, or
    has {} in its place; digits that differ follow a colon."""
    lines = []
    for label, part in rows.items():
        keys = [column if "{" in column else f"{{}}.{column}" for column in columns.split()]
        keys = [key.format(part).partition(":") for key in keys]
        if any(flat.get(key) is not None for key, _, _ in keys):
            lines.append([label, *(figure(flat.get(key), int(own or digits)) for key, _, own in keys)])
    if lines:
        print(f"\n{title}")
        table([head.split(" | "), *lines])


def print_shown(found: Iterable[Shown]) -> None:
    rows = [[one.what, one.wanted, one.measured, "met" if one.met else "FALLS SHORT"] for one in found]
    if rows:
        print("\nGoals")
        table([["", "wanted", "measured", ""], *rows])


def write(output: Path, flat: dict, found: Iterable[Shown] = ()) -> dict:
    """Flat dotted keys with units; goals go in as `shown.N.what`, `.wanted`, `.measured`, `.met`. In
    bench/results, SERIES go to NAME.series.json.xz beside NAME.json; `read` has both again."""
    flat = {key: rounded(value) for key, value in flat.items() if not key.startswith("shown.")}
    for number, one in enumerate(found):
        flat |= {f"shown.{number}.{key}": value for key, value in vars(one).items()}
    is_kept = output.resolve().parent == RESULTS
    series = {key: value for key, value in flat.items() if is_kept and SERIES.search(key)}
    output.parent.mkdir(parents=True, exist_ok=True)
    beside = series_of(output)
    if series:
        beside.write_bytes(lzma.compress(json.dumps(series).encode()))
    else:
        beside.unlink(missing_ok=True)
    single = {key: value for key, value in flat.items() if key not in series}
    output.write_text(json.dumps(single, indent=0) + "\n")
    return flat


def read(output: Path) -> dict:
    """What `write` wrote."""
    beside = series_of(output)
    series = json.loads(lzma.decompress(beside.read_bytes())) if beside.exists() else {}
    return json.loads(output.read_text()) | series


def series_of(output: Path) -> Path:
    return output.with_name(f"{output.stem}.series.json.xz")


def rounded(value: object) -> object:
    """Seven significant digits: more than a measurement has. Integers are counts, and stay whole."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
