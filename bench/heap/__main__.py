"""The command: runs workloads on allocators in turn, prints tables, writes bench/results/heap.json."""

import argparse
import os
import sys
from pathlib import Path

from bench import command
from bench.heap import allocators, tables
from bench.heap.goals import shown
from bench.heap.machine import memory_stays, thp_setting
from bench.heap.results import Results
from bench.heap.workload_list import ON_HUGE_PAGES, PAIRS, WORKLOADS
from bench.outcome import say, write
from bench.samples import Samples

EPILOG = """
allocators  glibc jemalloc tcmalloc mimalloc (Debian's packages), snmalloc mimalloc3 googletcmalloc rpmalloc
jemalloc531 (built once from their authors' sources) and mayfly, preloaded. Variants:
  NAME:huge            on huge pages: by its own setting, and transparent huge pages set to 'always' for the
                       length of the run (needs root, put back afterwards), with khugepaged sped up
  NAME:always          transparent huge pages 'always' alone, khugepaged as it is
  jemalloc:decay       returns memory in the background, as operators of servers set it (jemalloc531, too)
  glibc:arenas         with two arenas
  mayfly:fixed         every allocation in one lifetime class: the path without prediction
  mayfly:oracle        right lifetimes, passed at each allocation (swing only)
  mayfly:lines         the paper's span layout, bump allocation over 128-byte lines; mayfly:lines-oracle too
  mayfly:base          without huge pages

examples
  bench/heap/run                                        everything (an hour or so)
  bench/heap/run --quick --only swing,churn             two workloads, small, in seconds
  bench/heap/run --peer snmalloc=/opt/libsnmallocshim.so --only churn --rounds 5
  bench/heap/run --only redis --allocators tcmalloc:huge,mayfly
  timeout 420 bench/heap/run --samples target/bench/heap.samples   seven minutes; again until it ends

Allocators are measured in turn in every round, so that a slow moment of the machine hits all of them. Times
are medians, given as ratios to the best in this run: compare ratios, not times, between machines.
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "heap/run",
        "Compares allocators side by side: time, memory, huge pages, translations.",
        "workload",
        {one.name: one.about for one in WORKLOADS.values()},
        EPILOG,
        "small sizes, one round: under a minute",
        "heap.json",
        rounds=0,
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=LIB.so[,VAR=VALUE...]",
        help="another allocator, with its settings; repeatable",
    )
    parser.add_argument(
        "--allocators", metavar="NAME,...", help="these allocators and no others (with any --peer)"
    )
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="keep each run there; what is there is not run again"
    )
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", WORKLOADS, all_of=True)
    for peer in parsed.peer:
        if not all(all(part.partition("=")) for part in peer.split(",")):
            parser.error(f"--peer {peer}: write NAME=LIB.so, then any settings as ,VAR=VALUE")
    return parsed


def chosen_allocators(
    options: argparse.Namespace,
) -> tuple[list[allocators.Allocator], list[allocators.Allocator]]:
    """The allocators for every workload, and those for the workloads that name them."""
    added = {}
    for peer in options.peer:
        (name, library), *settings = (part.split("=", 1) for part in peer.split(","))
        added[name] = allocators.Allocator(name, Path(library).absolute(), dict(settings))
    if options.allocators:
        names = [name for name in options.allocators.split(",") if name]
        return [allocators.find(name, added) for name in dict.fromkeys([*names, *added])], []
    always = [allocators.find(name, added) for name in [*allocators.PEERS, *added, "mayfly"]]
    extra = dict.fromkeys(name for workload in WORKLOADS.values() for name in workload.extra)
    if options.quick:
        # Keeps the peer that Redis' fragmentation is compared with.
        extra = {name: None for name in extra if name == "tcmalloc:huge" or name not in ON_HUGE_PAGES}
    if thp_setting() == "absent" or os.geteuid() != 0:
        dropped = [name for name in extra if name.endswith((":huge", ":always"))]
        say(f"not root, or no transparent huge pages here: {', '.join(dropped)} left out")
        extra = {name: None for name in extra if name not in dropped}
    return always, [allocators.find(name, added) for name in extra]


def measure(options: argparse.Namespace) -> Results:
    always, extra = chosen_allocators(options)
    results = Results(always + extra)
    library = allocators.find("mayfly", {}).library
    samples = Samples(options.samples, library, {"size": options.quick})
    for workload in (WORKLOADS[name] for name in options.only):
        rounds = options.rounds or (1 if options.quick else workload.rounds)
        turn = [
            one for one in always + [e for e in extra if e.name in workload.extra] if workload.can_run(one)
        ]
        for number in range(rounds):
            for allocator in turn:
                if (workload.name, allocator.name) in results.failures:
                    continue
                key = (workload.name, allocator.name, number)
                if kept := samples.get(key):
                    results.add(workload.name, allocator, kept)
                    continue
                what = f"{workload.name} {number + 1}/{rounds} {allocator.name}"
                with command.attempt(what, results.failures, key[:2]) as said:
                    numbers = workload.run(allocator, options.quick)
                    samples.add(key, numbers)
                    results.add(workload.name, allocator, numbers)
                    if workload.name not in PAIRS:
                        said.append(f"{numbers['time_ms']:.6g} ms")
    return results


def run(options: argparse.Namespace) -> int:
    with memory_stays():
        results = measure(options)
    machine = command.machine(options.quick, transparent_huge_pages=thp_setting())
    flat = write(options.output, results.flat(machine), goals := shown(results))
    return command.report(options, flat, lambda: tables.print_all(results), goals, results.failures)


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: run(options)))
