"""A line that shows a DNA sequence: {"sequence": "ACGT..."} or {"length": 10000, "seed": 1}."""

import random

import squiggle

MOST_BASES = 1_000_000
SHOWN = 1000


def handler(event, context):
    length = int(event.get("length", 10_000))
    if length > MOST_BASES:
        raise ValueError(f"length must be at most {MOST_BASES}")
    numbers = random.Random(event.get("seed", 1))
    sequence = (event.get("sequence") or "".join(numbers.choices("ACGT", k=length))).upper()
    if len(sequence) > MOST_BASES or set(sequence) - set("ACGT"):
        raise ValueError(f"a sequence is at most {MOST_BASES} of A, C, G and T")
    xs, ys = squiggle.transform(sequence, method="squiggle")
    # At most SHOWN points.
    step = max(1, len(xs) // SHOWN)
    return {
        "bases": len(sequence),
        "lowest": float(min(ys)),
        "highest": float(max(ys)),
        "line": [[float(x), float(y)] for x, y in zip(xs[::step], ys[::step], strict=True)],
    }
