"""Real functions, plainly and on Mayfly in turn: cold starts of each, and several times a bursty trace, then
rest. Its cost in time, how many instances fit in a GiB, how fast memory is returned. All shown figures are
measured in this run."""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median

from bench.command import machine
from bench.outcome import RESULTS, ROOT, BenchError, at_least, at_most, print_shown, table, write
from bench.processes import ask
from bench.worker.experiments import SHIPPED, replay
from bench.worker.worker import MAYFLY, PLAIN, running

WAYS = {"plain": PLAIN, "mayfly": []}
REPORT = ROOT / "target" / "demo.html"
KEPT = RESULTS / "worker-demo.json"
# Plain, Mayfly, Mayfly, plain: the second of a pair finds the caches that the first has filled.
ROUNDS = 2
LOAD_S = 8
COLD_STARTS = 5  # of each function, after its first
IDLE_S = 1  # before an instance ends, while cold starts are measured
# Instances of each function, at the end and at most: density depends on the mix, so both sides have the same.
EACH = 4
# Shown figures: title, key in a report (which has no cold starts), and divisor.
FIGURES = {
    "rest_per_gib": ("instances per GiB at rest", "density.rest_per_gib", 1),
    "first_ms": ("a function's first start, until it asks for work, ms", None, 1),
    "next_ms": ("each later cold start, until it asks for work, ms", None, 1),
    "answer_ms": ("the same, until the first answer, ms", None, 1),
    "p50_ms": ("latency P50, ms", "latency.p50_ms", 1),
    "p99_ms": ("latency P99, ms", "latency.p99_ms", 1),
    "half_back_s": ("half of the memory is back after, s", "returned.half_ms", 1000),
}
# If half of the requests take longer than this, they wait for processors that other programs use.
QUEUED_MS = 500
GOALS = [  # printed with --keep
    ("rest_per_gib", at_least, 3.0),
    ("first_ms", at_most, 1.02),
    ("next_ms", at_most, 0.1),
    ("answer_ms", at_most, 0.45),
    ("p50_ms", at_most, 1.02),
    ("p99_ms", at_most, 1.0),
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, of 5 seconds of load")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of both [{ROUNDS}]")
    parser.add_argument("--speed", type=float, default=6, help="minutes of the trace that pass in one [6]")
    parser.add_argument("--keep", action="store_true", help=f"write the figures to {KEPT.relative_to(ROOT)}")
    return parser.parse_args()


def log(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def cold_starts(passes: int) -> list[dict[str, dict[str, float]]]:
    """Cold starts of each function, on a plain worker and on Mayfly in turn, each function's first one and
    then so many, after its instance has ended: their geometric means, by pass and worker."""
    found: list[dict[str, dict[str, float]]] = []
    with contextlib.ExitStack() as stack:
        workers = {
            way: stack.enter_context(running(*arguments, "--keep-alive", str(IDLE_S)))
            for way, arguments in WAYS.items()
        }
        for function in SHIPPED:
            for worker in workers.values():
                worker.invoke(function, 1)
        workers["mayfly"].wait_for_snapshots(SHIPPED)
        for number in range(passes):
            for worker in workers.values():
                worker.wait_until_empty()
            answers: dict[str, list[float]] = {way: [] for way in WAYS}
            for function in SHIPPED:
                for way in WAYS if number % 2 == 0 else reversed(WAYS):
                    answers[way].append(workers[way].invoke(function, number))
            found.append({way: {"answer_ms": geometric_mean(answers[way])} for way in WAYS})
        for way, worker in workers.items():
            starts = [worker.starts(function) for function in SHIPPED]
            for number, figures in enumerate(found):
                figures[way]["next_ms"] = geometric_mean([of_one[number + 1] for of_one in starts])
            found[0][way]["first_ms"] = geometric_mean([of_one[0] for of_one in starts])
    return found


def run(way: str, options: argparse.Namespace, kept: Path) -> dict[str, float]:
    """One run, kept in a file, and its figures."""
    load = kept.with_suffix(".load")
    with running(*WAYS[way], "--keep-alive", "3600") as worker:
        for function in SHIPPED:
            worker.invoke(function, 1)
        if way == "mayfly":
            worker.wait_for_snapshots(SHIPPED)
        load_s = 5 if options.quick else LOAD_S
        for function in SHIPPED:
            worker.limit_instances(function, EACH)
        answered = replay(worker, round(load_s * options.speed), options.speed)
        load.write_text(json.dumps(answered))
        for function in SHIPPED:
            worker.start_instances(function, EACH)
        # Plain instances have no idle work.
        worker.wait_for_rest(quiet_s=7 if way == "mayfly" else 2, limit_s=45)
        time.sleep(2)  # a sample of the store is a second old at most
        report("--worker", worker.address, "--load", load, "--name", way, "--keep", kept)
    found = json.loads(report(kept, "--json"))
    figures = {name: found.get(f"{way}.{key}") for name, (_, key, _) in FIGURES.items() if key}
    return {name: value / FIGURES[name][2] for name, value in figures.items() if value is not None}


def report(*options) -> str:
    return ask([MAYFLY, "report", *options], "mayfly report", 120)


def main() -> int:
    options = arguments()
    load = os.getloadavg()[0]
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="mayfly-demo-") as folder:
            log("the first start fetches the functions' packages")
            with running(*PLAIN) as worker:
                for function in SHIPPED:  # neither side pays for the first read from disk
                    worker.invoke(function, 1)
            begun = time.monotonic()
            starts = cold_starts(1 if options.quick else COLD_STARTS)
            log(f"cold starts: {time.monotonic() - begun:.0f} s")
            for number in range(1 if options.quick else options.rounds):
                kept = {way: Path(folder) / f"{way}-{number}.json" for way in WAYS}
                begun = time.monotonic()
                order = list(WAYS) if number % 2 == 0 else list(reversed(WAYS))
                rounds.append({way: run(way, options, kept[way]) for way in order})
                log(f"round {number + 1}: {', then '.join(order)}, {time.monotonic() - begun:.0f} s")
            REPORT.parent.mkdir(exist_ok=True)
            report(*kept.values(), "--output", REPORT)
    except BenchError as error:
        log(str(error))
        return 1
    except KeyboardInterrupt:
        log("interrupted")
        return 130
    found = compared(rounds + starts)
    shown = [
        goal(FIGURES[name][0], limit, median(found["ratio", name]), "x")
        for name, goal, limit in GOALS
        if found["ratio", name]
    ]
    print(
        f"\n{len(starts)} later cold starts of each function and {len(rounds)} rounds of plain and Mayfly, "
        "the next time the other way round"
    )
    rows = [["median (least to most)", "plain", "Mayfly", "Mayfly / plain"]]
    for name, (title, *_) in FIGURES.items():
        if found["plain", name] or found["mayfly", name]:
            rows.append([title, *(spread(found[way, name]) for way in (*WAYS, "ratio"))])
    table(rows)
    print_closing(found)
    if options.keep:
        print_shown(shown)
        flat = {"demo.rounds": len(rounds), "demo.starts": len(starts), "demo.load_before": round(load, 1)}
        for (way, name), values in found.items():
            for kind, of in (("", median), ("_min", min), ("_max", max)):
                if values:
                    flat[f"demo.{way}.{name}{kind}"] = round(of(values), 3)
        flat |= machine(options.quick)
        write(KEPT, flat, shown)
        print(f"\n  Written to {KEPT.relative_to(ROOT)}; bench/figures writes docs/numbers/worker.md from it")
    return 0


def print_closing(found: dict[tuple[str, str], list[float]]) -> None:
    """What the table says, where the charts are, and what to do next."""
    plain, mayfly = (found[way, "rest_per_gib"] for way in WAYS)
    print()
    if plain and mayfly:
        print(f"  A GiB holds {median(mayfly):.0f} idle instances on Mayfly, {median(plain):.0f} plainly.")
        print("  With more instances of a function the ratio grows (docs/numbers/worker.md).")
    times = [[median(found[way, name]) for way in WAYS] for name in ("first_ms", "next_ms", "answer_ms")]
    print("  A function's first start takes {1:.0f} ms on Mayfly, {0:.0f} plainly.".format(*times[0]))
    print(
        "  Each later instance takes {1:.0f} ms in place of {0:.0f}, ".format(*times[1])
        + "{1:.0f} in place of {0:.0f} until it has answered.".format(*times[2])
    )
    if any(value > QUEUED_MS for way in WAYS for value in found[way, "p50_ms"]):
        print("  Requests queued on both sides: other programs use this machine, and times say little.")
    command = MAYFLY.relative_to(ROOT) if MAYFLY.is_relative_to(ROOT) else MAYFLY
    print(f"  {REPORT.relative_to(ROOT)} has charts of the last round.")
    print(f"  Next: {command} up functions/template.yaml serves these functions until Ctrl-C,")
    print("  and docs/worker.md says how to serve yours.")


def spread(values: list[float]) -> str:
    """Median, least and most."""
    if not values:
        return "-"
    middle = f"{median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g} to {max(values):.3g})"


def compared(rounds: list[dict[str, dict[str, float]]]) -> dict[tuple[str, str], list[float]]:
    """Each figure of both sides, and the ratio in each round, whose runs follow one another."""
    found = {}
    for name in FIGURES:
        for way in WAYS:
            found[way, name] = [figures[way][name] for figures in rounds if name in figures[way]]
        both = [figures for figures in rounds if all(figures[way].get(name) for way in WAYS)]
        found["ratio", name] = [figures["mayfly"][name] / figures["plain"][name] for figures in both]
    return found


if __name__ == "__main__":
    sys.exit(main())
