"""The command bench/heap/count: instructions of a malloc and a free on every allocator, by single steps."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench import command
from bench.compiled import compiled
from bench.heap import allocators
from bench.heap.allocators import Allocator
from bench.outcome import BenchError, Shown, at_most, figure, say, table, write

HERE = Path(__file__).parent
PATTERNS = {
    "lifo": "one object of 64 B, freed at once",
    "new": "the same by operator new and delete",
    "batch": "100 objects of 64 B, then 100 frees",
    "random": "sizes of 16 to 1,024 B, 64 live, freed at random",
    "many": "the same with 1,000 live",
    "large": "16 objects of 1 MiB, the oldest freed first",
    "agree": "16 call sites of 64 B, all short-lived",
    "differ": "16 call sites of 64 B, every other one's objects live long",
    "through": "the same through one function that calls malloc for all 16",
}
LIMITS = {"agree": 40, "differ": 60}
EPILOG = """
Nothing but ptrace is needed, no performance counter. The program runs a pattern for a second and a half, so
that an allocator may learn, and then, of a few million calls, 2,000 in single steps: one in 997, or one in 23
of the pattern that pauses. What is counted runs outside the program's own file: not its loop. 'median' is the
fast path, 'mean' all calls, the slow paths among them. The calls between run at full speed, so what an
allocator does by the clock weighs in the mean as it does in life.

examples
  bench/heap/count                                   every allocator and pattern: three minutes or so
  bench/heap/count --only lifo,differ --allocators snmalloc,mimalloc3,mayfly
  MAYFLY_HEAP_LIBRARY=/tmp/one.so bench/heap/count --allocators mayfly
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "heap/count",
        "Counts the instructions of a malloc and a free on every allocator, by single steps.",
        "pattern",
        PATTERNS,
        EPILOG,
        None,
        "heap-instructions.json",
        rounds=3,
    )
    parser.add_argument("--allocators", metavar="NAME,...", help="these allocators and no others")
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", PATTERNS, all_of=True)
    return parsed


def programs() -> tuple[Path, Path]:
    """The one that steps, and the one that is stepped."""
    step = compiled("step", ["gcc", "-O2", "-Wall", "-Wextra", "-Werror"], HERE / "step.c")
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-fcf-protection=none"]
    return step, compiled("pairs", ["g++", *flags], HERE / "pairs.cc")


def count(allocator: Allocator, pattern: str) -> dict[str, float]:
    step, pairs = programs()
    environment = allocator.environment()
    # The stepping process itself stays on the system's allocator.
    environment["STEP_PRELOAD"] = environment.pop("LD_PRELOAD")
    result = subprocess.run(
        [step, pairs, pattern], env=environment, capture_output=True, text=True, timeout=300
    )
    if result.returncode:
        raise BenchError(f"{pattern} on {allocator.name}: {result.stderr.strip()[-300:]}")
    counted = json.loads(result.stdout)
    counted["pair.median"] = counted["malloc.median"] + counted["free.median"]
    counted["pair.mean"] = counted["malloc.mean"] + counted["free.mean"]
    return counted


def shown(found: dict, chosen: list[Allocator], patterns: list[str]) -> list[Shown]:
    if not any(one.name == "mayfly" for one in chosen):
        return []
    goals = []
    for pattern in patterns:
        ours = found[f"{pattern}.mayfly.pair.mean"]
        if pattern in LIMITS:
            goals.append(at_most(f"{pattern}: instructions a pair", LIMITS[pattern], ours, ""))
        peers = [found[f"{pattern}.{one.key}.pair.mean"] for one in chosen if one.base != "mayfly"]
        if peers:
            goals.append(at_most(f"{pattern}: to the peer with the fewest", 1, ours / min(peers), "x"))
    return goals


def run(options: argparse.Namespace) -> int:
    chosen = allocators.find_all(options.allocators or [*allocators.DEFAULT, "mayfly:fixed", "mayfly:lines"])
    patterns = options.only
    found: dict[str, float] = {}
    for pattern in patterns:
        for one in chosen:
            rounds = [count(one, pattern) for _ in range(options.rounds)]
            for metric in rounds[0]:
                found[f"{pattern}.{one.key}.{metric}"] = median(part[metric] for part in rounds)
            pair = found[f"{pattern}.{one.key}.pair.mean"]
            say(f"{pattern} {one.name}: {pair:.1f} a pair")
    goals = shown(found, chosen, patterns)
    flat = write(options.output, {"machine.cpus": os.cpu_count()} | found, goals)
    return command.report(options, flat, lambda: print_tables(patterns, chosen, found), goals)


def print_tables(patterns: list[str], chosen: list[Allocator], found: dict[str, float]) -> None:
    for kind, about in (("median", "fast path"), ("mean", "all calls")):
        print(f"\nInstructions of malloc + free, {kind}: {about}")
        rows = [["", *patterns]]
        for one in chosen:
            row = [one.name]
            for pattern in patterns:
                parts = (found[f"{pattern}.{one.key}.{call}.{kind}"] for call in ("malloc", "free"))
                row.append(" + ".join(figure(part, 0) for part in parts))
            rows.append(row)
        table(rows)


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: run(options)))
