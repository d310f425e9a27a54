#!/usr/bin/env python3
"""Makes trace.csv: half an hour of invocations of the functions here, in the layout of Azure Functions 2019.

It has the patterns of such traces (Shahrad et al., USENIX ATC 2020) that are hard for memory: a steady
stream, bursts that end at once, a load that swells and ebbs, timers, and functions that are hardly ever
called.
    functions/make_trace.py            writes functions/trace.csv
    functions/make_trace.py --check    fails if that file differs
"""

import argparse
import math
import pathlib
import random
import sys

MINUTES, SEED = 30, 2020
FILE = pathlib.Path(__file__).resolve().parent / "trace.csv"


def bursts(chance):
    """Quiet, with bursts of some minutes that end abruptly."""
    left = 0
    for _ in range(MINUTES):
        if left == 0 and chance.random() < 0.15:
            left = chance.randint(1, 4)
        yield chance.randint(120, 240) if left else chance.randint(0, 3)
        left = max(0, left - 1)


def waves(chance):
    """Swells and ebbs, a few minutes a wave."""
    return (round(60 + 55 * math.sin(minute / 2.2) + chance.uniform(-5, 5)) for minute in range(MINUTES))


def model_bursts(chance):
    """As bursts, but of requests that take ten times as long."""
    return (count // 4 for count in bursts(chance))


def model_waves(chance):
    return (count // 2 for count in waves(chance))


def steady(chance):
    return (chance.randint(25, 35) for _ in range(MINUTES))


def drop(chance):
    """High until the middle, then next to nothing."""
    return (
        chance.randint(90, 110) if minute < MINUTES // 2 else chance.randint(0, 1)
        for minute in range(MINUTES)
    )


def rare(chance):
    return (int(chance.random() < 0.07) for _ in range(MINUTES))


def timer(chance):
    return (int(minute % 5 == 0) for minute in range(MINUTES))


# HashOwner, HashApp, HashFunction, trigger, pattern. `mayfly load` calls the function of the same name, or
# assigns one.
ROWS = [
    ("shop", "web", "page", "http", bursts),
    ("shop", "pictures", "thumbnail", "queue", waves),
    ("maps", "routes", "bfs", "http", steady),
    ("laboratory", "sequences", "dna", "queue", drop),
    ("shop", "reports", "rare-report", "http", rare),
    ("maps", "tiles", "nightly-tiles", "timer", timer),
    ("shop", "pictures", "image", "queue", model_bursts),
    ("shop", "mail", "text", "http", model_waves),
]


def text():
    lines = [",".join(["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, MINUTES + 1))])]
    for number, (owner, app, function, trigger, pattern) in enumerate(ROWS):
        counts = pattern(random.Random(SEED + number))
        lines.append(",".join([owner, app, function, trigger, *map(str, counts)]))
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="only compare with the existing file")
    if not arguments.parse_args().check:
        FILE.write_text(text())
    elif FILE.read_text() != text():
        sys.exit(f"{FILE} differs from this program's output: run {__file__}")


if __name__ == "__main__":
    main()
