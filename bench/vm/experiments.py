"""The paper's evaluation, scaled to this machine: the experiments.

An experiment returns samples: a list of measured values for each key. Keys are dotted and end in their unit.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.outcome import say
from bench.vm import functions
from bench.vm.guest import Contender, Guest

Samples = dict[str, list[float]]

# An instance uses nearly all of its partition, as the paper's memhogs do.
FILL = 31 / 32
# The kernel finishes an ended instance's teardown in the background.
SETTLE_S = 0.3
# Unplugs for each cell of a table, enough for a meaningful spread.
ROUNDS = 30
ALL_MODES = ("static", "plain", "nodes", "ranges", "hotmem")
# For experiments that measure only unplugs: `static` has none.
MOVING = ("plain", "nodes", "ranges", "hotmem")
# Partition size of experiments that do not vary it: small, because filling it takes most of the time.
SMALL_MIB = 128
# How many of ten partitions are in use when one is unplugged.
USED = (9, 7, 5, 3, 1)
# Instances beside the computing one, and how long that one runs undisturbed first.
EVICTIONS, CALM_S = 32, 4
# Tenths of a second of the computing instance: begin of calm, begin of evictions, end of evictions.
Span = tuple[float, float, float]


@dataclass(frozen=True)
class Experiment:
    """`run` measures one of its pieces, each in a VM of its own and within minutes."""

    name: str
    about: str
    run: Callable[[Contender, str, bool], Samples]
    pieces: tuple[str, ...]
    quick: tuple[str, ...]  # the pieces with --quick
    contenders: tuple[str, ...] = ALL_MODES

    def chosen(self, quick: bool) -> tuple[str, ...]:
        return self.quick if quick else self.pieces


def add(samples: Samples, prefix: str, numbers: dict[str, float]) -> None:
    for key, value in numbers.items():
        samples.setdefault(prefix + key, []).append(value)


def unplug_loaded(
    contender: Contender, mib: int, rounds: int, instances: int = 4, **settings: str
) -> tuple[float, list[dict[str, float]]]:
    """A VM full of instances with interleaved pages: one ends, its memory is unplugged, another starts."""
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


def rounds(contender: Contender, quick: bool) -> int:
    """`static` returns no memory, so two rounds are enough."""
    return 2 if quick or not contender.elastic else ROUNDS


def sizes(contender: Contender, mib: str, quick: bool) -> Samples:
    """Figure 5: by size."""
    samples: Samples = {}
    plug_ms, found = unplug_loaded(contender, int(mib), rounds(contender, quick))
    samples[f"{mib}mib.plug_ms"] = [plug_ms]
    for numbers in found:
        add(samples, f"{mib}mib.", numbers)
    return samples


def zeroing(contender: Contender, value: str, quick: bool) -> Samples:
    """With and without zeroing of pages at allocation (Debian zeroes)."""
    samples: Samples = {}
    append = f"init_on_alloc={value}"
    for numbers in unplug_loaded(contender, SMALL_MIB, rounds(contender, quick), append=append)[1]:
        add(samples, f"init_on_alloc_{value}.", numbers)
    samples["mib"] = [SMALL_MIB]
    return samples


def backings(contender: Contender, backing: str, quick: bool) -> Samples:
    """By backing of the guest's memory, on which the host's part of an unplug depends."""
    samples: Samples = {}
    if backing == "huge" and huge_pages_free_mib() < 5 * SMALL_MIB + 1024:
        say("backing huge: too few huge pages are reserved (vm.nr_hugepages)")
        return samples
    for numbers in unplug_loaded(contender, SMALL_MIB, rounds(contender, quick), backing=backing)[1]:
        add(samples, f"{backing}.", numbers)
    return samples


def huge_pages_free_mib() -> int:
    found = re.search(r"^HugePages_Free:\s+(\d+)$", Path("/proc/meminfo").read_text(), re.M)
    return 2 * int(found[1]) if found else 0


def usage(contender: Contender, _: str, quick: bool) -> Samples:
    """Figure 6: ten instances fill a VM together, so their pages are interleaved. Then they end one by one,
    and each time a partition is unplugged while the remaining 9 to 1 are full.

    All ten start anew in each round. Memory that was unplugged and plugged again has no pages of instances
    that stayed: `plain` would unplug that first and move nothing, however much is in use.
    """
    samples: Samples = {}
    count, hog = 10, int(SMALL_MIB * FILL)
    with Guest(contender, count, SMALL_MIB) as guest:
        guest.warm_up()
        guest.plug_all()
        for number in range(rounds(contender, quick)):
            if number:
                for partition in USED:
                    guest.ask("plug", partition=partition)
            guest.fill(list(range(count)), hog)
            running = count
            for used in USED:
                for ended in range(used, running):
                    guest.stop(f"hog-{ended}")
                running = used
                time.sleep(SETTLE_S)
                add(samples, f"{used * 10}percent.", guest.unplug(used))
            guest.stop("hog-0")
    samples["mib"] = [SMALL_MIB]
    return samples


def steps(contender: Contender, piece: str, quick: bool) -> Samples:
    """Figure 7: a full VM of 8 GiB shrinks in steps of 512 MiB; CPU time of the vCPU that serves them and
    nothing else."""
    samples: Samples = {}
    count, mib = (4, SMALL_MIB) if quick else (16, 512)
    shrink(contender, samples, piece == "first", count, mib)
    samples["step_mib"] = [mib]
    return samples


def shrink(contender: Contender, samples: Samples, first: bool, count: int, mib: int) -> None:
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
            if first:
                add(samples, f"over_time.{step}.", {"at_s": at, "cpu_s": cpu})
        add(samples, "", {"cpu_s": cpu, "whole_s": at})


def interference(contender: Contender, _: str, quick: bool) -> Samples:
    """Figure 10: an instance computes on the vCPU that serves unplugs, while four others are evicted, some
    times over. Its calm is the time before each series of evictions."""
    samples: Samples = {}
    mib, probe = 256, 5
    hog = int(mib * FILL)
    spans: list[Span] = []
    with Guest(contender, 6, mib) as guest:
        if contender.elastic:
            guest.serve_unplug_on(1)
        guest.plug_all()
        guest.fill([4], hog, cpus=(0,))
        guest.spawn("probe", probe, "/opt/mayfly/latency", cpus=(1,))
        for number in range(1 if quick else EVICTIONS // 4):
            if number and contender.elastic:
                for victim in range(4):
                    guest.ask("plug", partition=victim)
            guest.fill(list(range(4)), hog, cpus=(0,))
            time.sleep(1)
            calm = last_tenth(guest)
            time.sleep(CALM_S)
            begin = last_tenth(guest)
            for victim in range(4):
                guest.stop(f"hog-{victim}")
                if contender.elastic:
                    add(samples, "", {"migrated_pages": guest.unplug(victim)["migrated_pages"]})
            spans.append((calm, begin, last_tenth(guest)))
            time.sleep(2)
        tenths = [[float(word) for word in line.split()] for line in guest.output("probe")[0].splitlines()]
    for span in spans:
        add(samples, "", of_evictions(tenths, span))
    calm, begin, end = spans[0]
    for at, us in by_second([one for one in tenths if calm <= one[0] <= end + 10], begin):
        add(samples, f"over_time.{at + 100}.", {"at_s": at, "mean_us": us})
    return samples


def of_evictions(tenths: list[list[float]], span: Span) -> dict[str, float]:
    """The effect of one series of evictions on the computing instance."""
    calm, begin, end = span
    before = [one for one in tenths if calm <= one[0] < begin]
    during = [one for one in tenths if begin <= one[0] <= end + 1]
    calm_us, during_us = mean_us(before), mean_us(during)
    worst = max((us for _, us in by_second(during, begin)), default=during_us)
    return {
        "calm_us": calm_us,
        "during_us": during_us,
        "during_ratio": during_us / calm_us,
        "evictions_s": (end - begin) / 10,
        "worst_second_us": worst,
        "worst_second_ratio": worst / calm_us,
        "calm_spread_ratio": max(us for _, us in by_second(before, begin)) / calm_us,
    }


def last_tenth(guest: Guest) -> float:
    """The number of the last tenth of a second that the probe has reported."""
    return float(guest.output("probe")[0].splitlines()[-1].split()[0])


def mean_us(tenths: list[list[float]]) -> float:
    requests = sum(one[1] for one in tenths)
    return sum(one[1] * one[2] for one in tenths) / requests


def by_second(tenths: list[list[float]], begin: float) -> list[tuple[int, float]]:
    """The mean latency of each whole second, counted from the first eviction, as in the paper's figure."""
    groups: dict[int, list[list[float]]] = {}
    for one in tenths:
        groups.setdefault(int((one[0] - begin) // 10), []).append(one)
    return [(at, mean_us(group)) for at, group in sorted(groups.items()) if len(group) >= 5]


EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment(
            "unplug",
            "unplug latency by size, VM full (Fig. 5)",
            sizes,
            ("128", "256", "512", "1024"),
            ("128",),
        ),
        Experiment("usage", "unplug latency by guest memory use (Fig. 6)", usage, ("all",), ("all",), MOVING),
        Experiment(
            "interference",
            "latency of a CPU-bound instance during unplugs (Fig. 10)",
            interference,
            ("all",),
            ("all",),
        ),
        Experiment(
            "steps",
            "a full VM of 8 GiB shrinks by 512 MiB: CPU of the vCPU (Fig. 7)",
            steps,
            ("first", "again"),  # 32 steps
            ("first",),
        ),
        Experiment(
            "zeroing", f"{SMALL_MIB} MiB with init_on_alloc=0 and 1", zeroing, ("0", "1"), ("0", "1"), MOVING
        ),
        Experiment(
            "functions",
            "functions under bursts: how fast memory comes back (Fig. 8), P99 (Fig. 9)",
            functions.trace,
            tuple(functions.LOADS),
            ("page",),
        ),
        Experiment(
            "colocated",
            "a function's requests while another's instances end (Fig. 10)",
            functions.colocated,
            ("all",),
            ("all",),
        ),
        Experiment(
            "backings",
            f"{SMALL_MIB} MiB in anonymous memory, in a shared file, in huge pages",
            backings,
            ("anonymous", "shared", "huge"),
            ("anonymous", "shared"),
            MOVING,
        ),
    )
}
