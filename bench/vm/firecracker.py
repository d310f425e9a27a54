"""Plugs and unplugs under Firecracker, beside QEMU, on a machine with KVM. It has not run on one yet.

Both run Mayfly's kernel in mode `ranges`. In each round every partition is plugged, filled by an instance,
and unplugged, in a random order. A used one must be refused, and at the end all must be absent.

  bench/vm/firecracker ./firecracker                 a release of github.com/firecracker-microvm/firecracker
  bench/vm/firecracker ./firecracker --alone         without QEMU beside it
"""

import argparse
import random
import sys
from pathlib import Path
from statistics import median

from bench import command
from bench.outcome import BenchError, say
from bench.vm.guest import Contender, Guest, build_image

# Of a partition; the rest is for the kernel.
FILLED = 0.75


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/vm/firecracker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path, metavar="PROGRAM", help="Firecracker 1.14 or later")
    parser.add_argument("--partitions", type=int, default=8, metavar="N", help="default 8")
    parser.add_argument("--partition-size", type=int, default=256, metavar="MIB", help="default 256")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="default 20")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the order (default 1)")
    parser.add_argument("--alone", action="store_true", help="without QEMU beside it")
    parser.add_argument("--image", metavar="FOLDER", help="another image than `mayfly vm image` builds")
    return parser.parse_args()


def measure(name: str, options: argparse.Namespace, settings: dict[str, str]) -> dict[str, float]:
    """Boots one VM, and returns the medians of its times in milliseconds."""
    say(name)
    chance, times = random.Random(options.seed), {}
    with Guest(Contender("ranges"), options.partitions, options.partition_size, **settings) as guest:

        def note(what: str, report: dict) -> None:
            for time in ("device_ns", "total_ns"):
                times.setdefault(f"{what}_{time[:-3]}", []).append(report[time] / 1e6)

        for _ in range(options.rounds):
            for verb in ("plug", "unplug"):
                order = chance.sample(range(options.partitions), options.partitions)
                for number in order:
                    if verb == "unplug":
                        guest.stop(f"hog-{number}")
                    note(verb, guest.ask(verb, partition=number))
                if verb == "plug":
                    guest.fill(order, int(options.partition_size * FILLED))
                    refused = guest.answer({"verb": "unplug", "partition": order[0]})
                    if "error" not in refused:
                        raise BenchError(f"{name}: a used partition was unplugged: {refused}")
        left = [state for state in guest.ask("status")["partitions"] if state["state"] != "absent"]
        if left:
            raise BenchError(f"{name}: not absent at the end: {left}")
        return {"boot": guest.status["boot_ns"] / 1e6} | {what: median(all_) for what, all_ in times.items()}


def report(options: argparse.Namespace) -> int:
    if not options.image:
        build_image("hotmem")
    image = {"image": options.image} if options.image else {}
    results = {"firecracker": measure("firecracker", options, image | {"firecracker": str(options.program)})}
    if not options.alone:
        results["qemu"] = measure("qemu", options, image)
    print(f"| milliseconds | {' | '.join(results)} |\n| --- |{' ---: |' * len(results)}")
    for what in results["firecracker"]:
        print(f"| {what} | " + " | ".join(f"{times[what]:.1f}" for times in results.values()) + " |")
    return 0


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: report(options)))
