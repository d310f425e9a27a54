"""The command: runs experiments on modes in turn, prints tables, writes bench/results/vm.json."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from bench.outcome import RESULTS, BenchError
from bench.outcome import write as write_results
from bench.vm import tables
from bench.vm.experiments import EXPERIMENTS
from bench.vm.guest import Contender, Guest, mayfly
from bench.vm.results import Results
from bench.vm.shown import shown

EPILOG = """
modes       static  all memory from boot (the paper's statically over-provisioned VM); gives nothing back
            plain   one virtio-mem device (the paper's vanilla)
            nodes   a NUMA node per partition, on any kernel
            hotmem  the paper's partitions, in Mayfly's kernel
            All run on Mayfly's kernel, so that only the mode differs; MODE:debian runs on Debian's.

examples
  bench/vm/run                                   everything
  bench/vm/run --quick --only unplug             one experiment, small, in a minute or so
  bench/vm/run --only unplug,usage --modes plain,nodes

The machine's accelerator decides the times: compare ratios within one run, not times between machines.
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/vm/run",
        description="Compares ways to make a VM's memory elastic: latency, CPU, migrations, memory returned.",
        epilog="experiments\n"
        + "\n".join(f"  {e.name:<13} {e.about}" for e in EXPERIMENTS.values())
        + "\n"
        + EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="EXPERIMENT,...", help="these experiments and no others")
    parser.add_argument("--modes", metavar="MODE,...", help="these modes and no others")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: a few minutes")
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, not as tables"
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "vm.json", metavar="FILE", help="where the JSON goes"
    )
    parsed = parser.parse_args()
    known = {name for one in EXPERIMENTS.values() for name in one.contenders}
    known |= {f"{name}:debian" for name in ("static", "plain", "nodes")}
    for option, names in (("only", set(EXPERIMENTS)), ("modes", known)):
        for name in (getattr(parsed, option) or "").split(","):
            if name and name not in names:
                parser.error(f"--{option} {name}: there is no such one; there are {', '.join(sorted(names))}")
    return parsed


def listed(option: str | None, default: list[str]) -> list[str]:
    return [name for name in (option or "").split(",") if name] or default


def build_images(contenders: list[Contender]) -> None:
    for kernel in sorted({one.kernel for one in contenders}):
        command = [str(mayfly()), "vm", "image", "--kernel", kernel]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise BenchError(f"the image with kernel {kernel} could not be built: {' '.join(command)}")


def measure(options: argparse.Namespace) -> Results:
    only = [EXPERIMENTS[name] for name in listed(options.only, list(EXPERIMENTS))]
    asked = listed(options.modes, [])
    chosen = {one.name: [n for n in asked or one.contenders] for one in only}
    contenders = [Contender(name) for name in dict.fromkeys(n for names in chosen.values() for n in names)]
    build_images(contenders)
    results = Results(contenders)
    for experiment in only:
        for contender in [one for one in contenders if one.name in chosen[experiment.name]]:
            if not contender.elastic and experiment.name != "interference":
                continue
            start = time.monotonic()
            try:
                results.samples[experiment.name, contender.name] = experiment.run(contender, options.quick)
                outcome = "done"
            except BenchError as error:
                results.failures[experiment.name, contender.name] = str(error)
                outcome = f"FAILED: {error}"
            took = time.monotonic() - start
            what = f"{experiment.name} {contender.name}"
            print(f"bench: {what}: {outcome} (took {took:.0f} s)", file=sys.stderr, flush=True)
            write(results, options)  # an interrupted run keeps what it has
    return results


def write(results: Results, options: argparse.Namespace) -> dict:
    machine = {
        "cpus": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "accelerator": "; ".join(sorted(Guest.accelerators)),
        "quick": options.quick,
    }
    return write_results(options.output, results.flat(machine), shown(results))


def main() -> int:
    options = arguments()
    try:
        results = measure(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    flat = write(results, options)
    if options.json:
        print(json.dumps(flat))
    else:
        tables.print_all(results)
        print(f"\nWritten to {options.output}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
