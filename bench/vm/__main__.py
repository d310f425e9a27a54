"""The command: runs experiments on modes in turn, prints tables, writes bench/results/vm.json."""

import argparse
import sys
from pathlib import Path

from bench import command
from bench.outcome import write as write_results
from bench.samples import Samples
from bench.vm import tables
from bench.vm.experiments import EXPERIMENTS, Experiment
from bench.vm.goals import goals
from bench.vm.guest import Contender, Guest, build_image, mayfly
from bench.vm.results import Results

STOCK_MODES = ("static", "plain", "nodes")
EPILOG = """
modes       static  all memory from boot (the paper's statically over-provisioned VM); returns nothing
            plain   one virtio-mem device (the paper's vanilla)
            nodes   a NUMA node per partition, on any kernel
            hotmem  partitions in Mayfly's kernel, a device each
            ranges  the same in one device, as in the paper
            All run on Mayfly's kernel, so that only the mode differs; MODE:debian runs on Debian's.

examples
  bench/vm/run                                   everything
  bench/vm/run --quick --only unplug             one experiment, small, in a minute or so
  bench/vm/run --only unplug,usage --modes plain,nodes
  bench/vm/run --samples samples.jsonl           everything, however often it is interrupted

Times depend on the machine's accelerator: compare ratios within one run, not times between machines.
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "vm/run",
        "Compares ways to make a VM's memory elastic: latency, CPU, migrations, memory returned.",
        "experiment",
        {one.name: one.about for one in EXPERIMENTS.values()},
        EPILOG,
        "small sizes, few rounds: a few minutes",
        "vm.json",
    )
    parser.add_argument("--modes", metavar="MODE,...", help="these modes and no others")
    parser.add_argument(
        "--accelerator",
        choices=("auto", "kvm", "tcg"),
        default="auto",
        help="how guests run: kvm, tcg (emulated), or auto: kvm where it boots the kernel [default: auto]",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="keep samples there, one line for each piece of an experiment, and resume with the missing ones",
    )
    parsed = parser.parse_args()
    Guest.accelerator = parsed.accelerator
    command.choose(parser, parsed, "only", EXPERIMENTS, all_of=True)
    modes = [name for one in EXPERIMENTS.values() for name in one.contenders]
    command.choose(
        parser, parsed, "modes", dict.fromkeys([*modes, *(f"{name}:debian" for name in STOCK_MODES)])
    )
    return parsed


def contenders_of(experiment: Experiment, modes: list[str]) -> list[str]:
    """The requested modes in which the experiment can be measured."""
    asked = modes or experiment.contenders
    return [name for name in asked if Contender(name).mode in experiment.contenders]


def measure(options: argparse.Namespace) -> Results:
    only = [EXPERIMENTS[name] for name in options.only]
    chosen = {one.name: contenders_of(one, options.modes) for one in only}
    contenders = [Contender(name) for name in dict.fromkeys(n for names in chosen.values() for n in names)]
    for kernel in sorted({one.kernel for one in contenders}):
        build_image(kernel)
    more = {"size": options.quick, "accelerator": Guest.accelerator}
    kept, results = Samples(options.samples, mayfly(), more), Results(contenders)
    for experiment in only:
        # The modes in turn, so that numbers that are compared were measured within minutes.
        for piece in experiment.chosen(options.quick):
            for contender in [one for one in contenders if one.name in chosen[experiment.name]]:
                measure_piece(experiment, contender, piece, kept, results, options)
                write(results, options)  # an interrupted run keeps its results
    return results


def measure_piece(
    experiment: Experiment,
    contender: Contender,
    piece: str,
    kept: Samples,
    results: Results,
    options: argparse.Namespace,
) -> None:
    key = (experiment.name, contender.name, piece)
    if (found := kept.get(key)) is not None:
        results.add(experiment.name, contender.name, found["samples"])
        Guest.accelerators.update(found["accelerators"])
        return
    with command.attempt(" ".join(key), results.failures, key[:2]):
        samples = experiment.run(contender, piece, options.quick)
        results.add(experiment.name, contender.name, samples)
        kept.add(key, {"samples": samples, "accelerators": sorted(Guest.accelerators)})


def write(results: Results, options: argparse.Namespace) -> dict:
    machine = command.machine(options.quick, accelerator="; ".join(sorted(Guest.accelerators)))
    return write_results(options.output, results.flat(machine), goals(results))


def run(options: argparse.Namespace) -> int:
    results = measure(options)
    flat = write(results, options)
    return command.report(options, flat, lambda: tables.print_all(results), goals(results), results.failures)


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: run(options)))
