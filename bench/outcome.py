"""What every comparison leaves: numbers in bench/results, tables for people, and what was to be shown beside
what was measured."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


class BenchError(Exception):
    """Something the user can act on: printed as one line, and the command exits with 1."""


def say(text: str) -> None:
    """How far it is."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass
class Shown:
    """One goal, and whether one run shows it: enough, or falling short."""

    what: str
    wanted: str
    measured: str
    met: bool


def at_most(what: str, limit: float, value: float, unit: str) -> Shown:
    return Shown(what, f"<= {limit:g}{unit}", f"{value:.3g}{unit}", value <= limit)


def at_least(what: str, limit: float, value: float, unit: str) -> Shown:
    return Shown(what, f">= {limit:g}{unit}", f"{value:.3g}{unit}", value >= limit)


def table(rows: Sequence[Sequence[str]], out=sys.stdout) -> None:
    """The first row is the heading; the first column goes left, the others right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        print("  " + "  ".join(cells).rstrip(), file=out)


def figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def print_shown(found: Iterable[Shown]) -> None:
    rows = [[one.what, one.wanted, one.measured, "met" if one.met else "FALLS SHORT"] for one in found]
    if rows:
        print("\nTo be shown")
        table([["", "wanted", "measured", ""], *rows])


def write(output: Path, flat: dict, found: Iterable[Shown] = ()) -> dict:
    """Flat dotted keys with units; goals go in as `shown.N.what`, `.wanted`, `.measured`, `.met`."""
    flat = {key: value for key, value in flat.items() if not key.startswith("shown.")}
    for number, one in enumerate(found):
        flat |= {f"shown.{number}.{key}": value for key, value in vars(one).items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(flat, indent=1) + "\n")
    return flat
