"""The style of every figure, its file, and the command that draws a room's figures from its results."""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

from bench.outcome import RESULTS, ROOT, read  # noqa: E402

# The same input gives the same file, byte by byte, so that a figure changes only when a number does.
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "mayfly",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def save(figure, name: str) -> Path:
    path = RESULTS / f"{name}.svg"
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return path


def draw_all(room: str, draw: Callable[[dict], list[Path | None]]) -> int:
    """Reads bench/results/ROOM.json, calls `draw` with it, prints the drawn files; returns the exit
    status."""
    source = RESULTS / f"{room}.json"
    if len(sys.argv) > 1:
        print(
            f"usage: bench/{room}/figures    draws bench/results/{room}-*.svg from {room}.json",
            file=sys.stderr,
        )
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    try:
        results = read(source)
    except FileNotFoundError:
        print(f"figures: {source}: not there; bench/{room}/run writes it", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"figures: {source}: not a result file: {error}", file=sys.stderr)
        return 1
    for path in draw(results):
        if path:
            print(path.relative_to(ROOT))
    return 0
