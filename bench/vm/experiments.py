"""The paper's evaluation, scaled to this machine: what each experiment does with a VM, and what it returns.

An experiment returns samples: a list of measured values for each key. Keys are dotted and say their unit.
"""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.vm import functions
from bench.vm.guest import Contender, Guest

Samples = dict[str, list[float]]

# An instance uses nearly all of its partition, as the paper's memhogs do.
FILL = 31 / 32
# The kernel finishes an ended instance's teardown in the background.
SETTLE_S = 0.3
# Unplugs in a cell of a table, so that its spread says something.
ROUNDS = 30
ALL_MODES = ("static", "plain", "nodes", "hotmem")


@dataclass(frozen=True)
class Experiment:
    name: str
    about: str
    run: Callable[[Contender, bool], Samples]
    contenders: tuple[str, ...] = ALL_MODES


def add(samples: Samples, prefix: str, numbers: dict[str, float]) -> None:
    for key, value in numbers.items():
        samples.setdefault(prefix + key, []).append(value)


def unplug_loaded(
    contender: Contender, mib: int, rounds: int, instances: int = 4, **settings: str
) -> tuple[float, list[dict[str, float]]]:
    """A VM full of instances with interleaved pages: one ends, its memory is unplugged, another comes."""
    hog = int(mib * FILL)
    found = []
    with Guest(contender, instances, mib, **settings) as guest:
        guest.warm_up()
        plug_ms = guest.plug_all()
        guest.fill(list(range(instances)), hog)
        for number in range(rounds):
            victim = number % instances
            guest.stop(f"hog-{victim}")
            time.sleep(SETTLE_S)
            found.append(guest.unplug(victim))
            if number + 1 < rounds:
                guest.ask("plug", partition=victim)
                guest.fill([victim], hog)
    return plug_ms, found


def sizes(contender: Contender, quick: bool) -> Samples:
    """Figure 5: by size."""
    samples: Samples = {}
    for mib in (128, 256) if quick else (128, 256, 512, 1024):
        plug_ms, found = unplug_loaded(contender, mib, rounds=2 if quick else ROUNDS)
        samples[f"{mib}mib.plug_ms"] = [plug_ms]
        for numbers in found:
            add(samples, f"{mib}mib.", numbers)
    return samples


def zeroing(contender: Contender, quick: bool) -> Samples:
    """256 MiB, with pages zeroed when they are allocated (as Debian does) and without."""
    samples: Samples = {}
    rounds = 2 if quick else ROUNDS
    for value in (0, 1):
        for numbers in unplug_loaded(contender, 256, rounds, append=f"init_on_alloc={value}")[1]:
            add(samples, f"init_on_alloc_{value}.", numbers)
    return samples


def backings(contender: Contender, quick: bool) -> Samples:
    """256 MiB on what can hold a guest's memory: the host's part of an unplug depends on it."""
    samples: Samples = {}
    for backing in BACKINGS:
        if backing == "huge" and huge_pages_free_mib() < 5 * 256 + 1024:
            print("bench: backing huge: too few huge pages are set aside (vm.nr_hugepages)", file=sys.stderr)
            continue
        rounds = 2 if quick else ROUNDS
        for numbers in unplug_loaded(contender, 256, rounds, backing=backing)[1]:
            add(samples, f"{backing}.", numbers)
    return samples


BACKINGS = ("anonymous", "shared", "huge")


def huge_pages_free_mib() -> int:
    found = re.search(r"^HugePages_Free:\s+(\d+)$", Path("/proc/meminfo").read_text(), re.M)
    return 2 * int(found[1]) if found else 0


def usage(contender: Contender, quick: bool) -> Samples:
    """Figure 6: one of ten partitions is unplugged while 1 to 9 others are full.

    Before, all ten are filled, and those that are not to stay are emptied: memory that was never touched
    costs the host nothing, and `plain` finds it first while there is any.
    """
    samples: Samples = {}
    mib, others = 128 if quick else 256, 9
    hog, victim = int(mib * FILL), 9
    with Guest(contender, others + 1, mib) as guest:
        guest.warm_up()
        guest.plug_all()
        running: set[int] = set()
        for count in (1, 5, 9) if quick else (1, 3, 5, 7, 9):
            for _ in range(1 if quick else ROUNDS):
                guest.fill([number for number in range(others + 1) if number not in running], hog)
                for number in [*range(count, others), victim]:
                    guest.stop(f"hog-{number}")
                running = set(range(count))
                time.sleep(SETTLE_S)
                add(samples, f"{count * 10}percent.", guest.unplug(victim))
                guest.ask("plug", partition=victim)
    return samples


def steps(contender: Contender, quick: bool) -> Samples:
    """Figure 7: a full VM of 8 GiB shrinks in steps of 512 MiB; CPU time of the vCPU that serves them and
    nothing else. Twice, so that there are 32 steps."""
    samples: Samples = {}
    count, mib = (4, 128) if quick else (16, 512)
    for number in range(1 if quick else 2):
        shrink(contender, samples, number, count, mib)
    samples["step_mib"] = [mib]
    return samples


def shrink(contender: Contender, samples: Samples, number: int, count: int, mib: int) -> None:
    with Guest(contender, count, mib) as guest:
        if contender.elastic:
            guest.serve_unplug_on(1)
        guest.plug_all()
        guest.fill(list(range(count)), int(mib * FILL), cpus=(0,))
        time.sleep(1)
        before, begin = guest.vcpu_s(1), time.monotonic()
        for step in range(count):
            guest.stop(f"hog-{step}")
            numbers = guest.unplug(step)
            add(samples, "", {"migrated_pages": numbers["migrated_pages"], "step_ms": numbers["unplug_ms"]})
            at, cpu = time.monotonic() - begin, guest.vcpu_s(1) - before
            if number == 0:
                add(samples, f"over_time.{step}.", {"at_s": at, "cpu_s": cpu})
        add(samples, "", {"cpu_s": cpu, "whole_s": at})


def interference(contender: Contender, quick: bool) -> Samples:
    """Figure 10: an instance computes on the vCPU that serves unplugs, while four others are evicted."""
    samples: Samples = {}
    mib, probe = 256, 5
    calm_s = 3 if quick else 6
    with Guest(contender, 6, mib) as guest:
        if contender.elastic:
            guest.serve_unplug_on(1)
        guest.plug_all()
        guest.fill(list(range(5)), int(mib * FILL), cpus=(0,))
        guest.spawn("probe", probe, "/opt/mayfly/latency", cpus=(1,))
        time.sleep(1 + calm_s)
        begin = last_tenth(guest)
        for victim in range(4):
            guest.stop(f"hog-{victim}")
            if contender.elastic:
                add(samples, "", {"migrated_pages": guest.unplug(victim)["migrated_pages"]})
        end = last_tenth(guest)
        time.sleep(calm_s)
        tenths = [[float(word) for word in line.split()] for line in guest.output("probe")[0].splitlines()]
    tenths = tenths[10:]  # the first second warms up the translator
    calm = [one for one in tenths if not begin <= one[0] <= end + 1]
    during = [one for one in tenths if begin <= one[0] <= end + 1]
    calm_us = mean_us(calm)
    add(samples, "", {"calm_us": calm_us, "during_us": mean_us(during), "evictions_s": (end - begin) / 10})
    seconds = by_second(tenths, int(begin))
    worst = max(us for at, us in seconds if 0 <= at <= (end + 1 - begin) // 10)
    add(samples, "", {"worst_second_us": worst, "worst_second_ratio": worst / calm_us})
    add(samples, "", {"calm_spread_ratio": max(us for at, us in seconds if at < -1) / calm_us})
    for at, us in seconds:
        add(samples, f"over_time.{at + 100}.", {"at_s": at, "mean_us": us})
    return samples


def last_tenth(guest: Guest) -> float:
    """The number of the last tenth of a second that the probe has reported."""
    return float(guest.output("probe")[0].splitlines()[-1].split()[0])


def mean_us(tenths: list[list[float]]) -> float:
    requests = sum(one[1] for one in tenths)
    return sum(one[1] * one[2] for one in tenths) / requests


def by_second(tenths: list[list[float]], begin: int) -> list[tuple[int, float]]:
    """The mean latency of each whole second, counted from the first eviction, as in the paper's figure."""
    groups: dict[int, list[list[float]]] = {}
    for one in tenths:
        groups.setdefault(int((one[0] - begin) // 10), []).append(one)
    return [(at, mean_us(group)) for at, group in sorted(groups.items()) if len(group) >= 5]


EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment("unplug", "unplug latency by size, VM full (Fig. 5)", sizes),
        Experiment("usage", "unplug latency by guest memory use (Fig. 6)", usage),
        Experiment(
            "interference",
            "latency of a CPU-bound instance during unplugs (Fig. 10)",
            interference,
        ),
        Experiment("steps", "a full VM of 8 GiB shrinks by 512 MiB: CPU of the vCPU (Fig. 7)", steps),
        Experiment(
            "functions",
            "functions under bursts: how fast memory comes back (Fig. 8), P99 (Fig. 9)",
            functions.trace,
        ),
        Experiment(
            "colocated",
            "a function's requests while another's instances end (Fig. 10)",
            functions.colocated,
        ),
        Experiment(
            "zeroing",
            "256 MiB with init_on_alloc=0 and 1, on Mayfly's kernel and on Debian's",
            zeroing,
            (*ALL_MODES, "plain:debian", "nodes:debian"),
        ),
        Experiment("backings", "256 MiB in anonymous memory, in a shared file, in huge pages", backings),
    )
}
