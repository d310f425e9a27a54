"""The synthetic comparison: instances with one region each, most of it the same in all, merged in different
ways.

`compare` measures 16 x 256 MiB at 5% private (memory beside the ideal, CPU of all processes, time), `by_size`
the first and the second call for regions of growing size (UPM Fig. 7).
"""

import contextlib
import time
from dataclasses import dataclass

from bench.merge import store
from bench.merge.build import region_program
from bench.merge.json_process import JsonProcess, fleet
from bench.merge.machine import (
    KSM_BEST,
    KSM_DEFAULT,
    LIBRARY,
    MIB,
    PAGE,
    available_mib,
    cpu_s,
    ksm_merged_pages,
    ksm_running,
    ksmd,
    mappings_of,
    memory_of,
    take_and_return,
)
from bench.outcome import medians

METHODS = ["none", "engine", "engine_at_once", "ksm_default", "ksm_best"]
PATTERNS = ["contiguous", "scattered", "alternating"]
# The patterns differ in how pages lie, which matters to the engine; KSM's best is measured beside it where
# that has a goal.
MEASURED = {
    "contiguous": METHODS,
    "scattered": ["engine", "ksm_best"],
    "alternating": ["engine"],
}
PHASES = ["hash", "search", "known", "insert", "map", "freeze", "compare", "remap"]
Numbers = dict[str, float]


@dataclass(frozen=True)
class Shape:
    instances: int
    mib: int
    pattern: str = "contiguous"
    private_percent: float = 5


class Instance(JsonProcess):
    """One running region program."""

    def __init__(self, shape: Shape, number: int, method: str, environment: dict[str, str]):
        method = method.partition("_")[0]
        described = [str(shape.mib), shape.pattern, str(shape.private_percent), str(number)]
        super().__init__(f"instance {number}", [region_program(), *described, method, LIBRARY], environment)


@contextlib.contextmanager
def instances(shape: Shape, method: str, environment: dict[str, str]):
    with fleet() as started:
        for number in range(shape.instances):
            started.append(Instance(shape, number, method, environment))
        for one in started:
            one.private_pages = one.answer()["private_pages"]
        yield started


def ideal_mib(shape: Shape, private_pages: float) -> float:
    """The memory that the regions need if no page exists twice: the common part once, and all private
    parts."""
    pages = shape.mib * MIB // PAGE
    return (pages - private_pages / shape.instances + private_pages) * PAGE / MIB


def in_turn(shape: Shape, methods: list[str], limits_s: Numbers, rounds: int) -> Numbers:
    """Medians of each method over rounds in turn, and the least and the most; KSM's default, which merges
    next to nothing, in the first round alone."""
    runs: dict[str, list[Numbers]] = {method: [] for method in methods}
    for number in range(rounds):
        for method in methods:
            if number == 0 or method != "ksm_default":
                runs[method].append(compare(shape, method, limits_s.get(method, 0)))
    return {f"{method}.{key}": value for method, of in runs.items() for key, value in medians(of).items()}


def compare(shape: Shape, method: str, ksm_limit_s: float) -> Numbers:
    """One method, start to end. Every instance's contents are verified after merging and after writing."""
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(store.running()) if method.startswith("engine") else None
        daemon_cpu = shared.cpu_s() if shared else 0
        if method.startswith("ksm"):
            stack.enter_context(ksm_running(KSM_BEST if method == "ksm_best" else KSM_DEFAULT))
        free_before = available_mib()
        running = stack.enter_context(instances(shape, method, shared.environment() if shared else {}))
        private_pages = sum(one.private_pages for one in running)
        pids = [one.pid for one in running]
        base = memory_of(pids)
        overhead_mib = base["anonymous"] - shape.instances * shape.mib  # the programs themselves
        numbers: Numbers = {"ideal_mib": ideal_mib(shape, private_pages), "before_mib": base["anonymous"]}
        free_full = available_mib()
        take_and_return(free_full / 2)
        begun, scanner_cpu = time.monotonic(), cpu_s(ksmd()) if method.startswith("ksm") else 0
        answers = (
            all_at_once(running, "a") if method == "engine_at_once" else [one.ask("a") for one in running]
        )
        numbers["calls_s"] = numbers["wall_s"] = time.monotonic() - begun
        client_cpu = sum(answer["cpu_s"] for answer in answers)
        if method.startswith("ksm"):
            numbers |= wait_for_ksm(shape, pids, private_pages, begun, ksm_limit_s)
            scanner_cpu = cpu_s(ksmd()) - scanner_cpu
        if shared:
            daemon_cpu = shared.cpu_s() - daemon_cpu
            mib = shape.mib
            numbers["first_call_mib_per_s"] = mib / answers[0]["wall_s"]
            later = sorted(answer["wall_s"] for answer in answers[1:])
            if later:
                numbers["merging_call_mib_per_s"] = mib / later[len(later) // 2]
            numbers["store_mib"] = shared.blocks_mib()
            for name, some in (("first", answers[:1]), ("merging", answers[1:])):
                numbers |= {f"{name}.{key}": value for key, value in shares(some).items()}
        after = memory_of(pids)
        merged = ksm_merged_pages(pids) if method.startswith("ksm") else 0
        numbers["memory_mib"] = after["anonymous"] - overhead_mib
        if shared:
            # The index is among the store's segments; the daemon's other memory counts too.
            numbers["memory_mib"] += numbers["store_mib"] + memory_of([shared.pid])["anonymous"]
        elif merged:
            # A page that KSM has merged counts as anonymous in every process that maps it.
            numbers["memory_mib"] = ksm_memory_mib(shape, pids, overhead_mib)
        numbers["pss_mib"], numbers["rss_mib"] = after["pss"], after["rss"]
        numbers["available_drop_mib"] = free_before - available_mib()
        numbers["available_drop_before_mib"] = free_before - free_full
        numbers["client_cpu_s"], numbers["daemon_cpu_s"], numbers["ksmd_cpu_s"] = (
            client_cpu,
            daemon_cpu,
            scanner_cpu,
        )
        numbers["cpu_s"] = client_cpu + daemon_cpu + scanner_cpu
        numbers["over_ideal_percent"] = 100 * (numbers["memory_mib"] / numbers["ideal_mib"] - 1)
        numbers["mappings_of_last"] = mappings_of(pids[-1])
        for one in (running[0], running[-1]):
            one.ask("v")
        if shared:
            numbers["again_mib_per_s"] = shape.mib / running[-1].ask("a")["wall_s"]
        numbers["read_all_s"] = running[-1].ask("t")["wall_s"]
        numbers["write_eighth_s"] = running[-1].ask("w")["wall_s"]
        running[0].ask("v")  # another instance's writes must not be visible here
    return numbers


def all_at_once(running: list[Instance], step: str) -> list[Numbers]:
    """One step of all instances, none waiting for another."""
    for one in running:
        one.send(step)
    return [one.answer() for one in running]


def ksm_memory_mib(shape: Shape, pids: list[int], overhead_mib: float) -> float:
    """Anonymous memory in frames, not in mappings: PSS counts a merged page once over all that share it."""
    pss = sum(smaps_pss_anonymous_kib(pid) for pid in pids) / 1024
    return pss - overhead_mib


def smaps_pss_anonymous_kib(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Pss_Anon:"))


def wait_for_ksm(
    shape: Shape, pids: list[int], private_pages: float, begun: float, limit_s: float
) -> Numbers:
    """Until 99% of the mergeable pages have merged, or the time is up."""
    wanted = shape.instances * shape.mib * MIB // PAGE - private_pages
    numbers: Numbers = {}
    while True:
        time.sleep(0.05)
        merged, taken = ksm_merged_pages(pids), time.monotonic() - begun
        if merged >= wanted / 2 and "half_merged_s" not in numbers:
            numbers["half_merged_s"] = taken
        if merged >= 0.99 * wanted or taken > limit_s:
            numbers["wall_s"] = taken
            numbers["merged_percent"] = 100 * merged / wanted
            return numbers


def shares(answers: list[Numbers]) -> Numbers:
    """The steps of some calls, in percent of their time, as in Table I; and their rate."""
    total = sum(answer["total_ns"] for answer in answers)
    if not total:
        return {}
    found = {f"{phase}_percent": 100 * sum(a[f"{phase}_ns"] for a in answers) / total for phase in PHASES}
    found["other_percent"] = 100 - sum(found.values())
    found["pages"] = sum(answer["pages"] for answer in answers)
    return found


def by_size(sizes_mib: list[int], rounds: int) -> dict[int, Numbers]:
    """Fig. 7: the same distinct pages in two programs. The first call adds them, the second merges them."""
    found: dict[int, Numbers] = {}
    for mib in sizes_mib:
        firsts, seconds = [], []
        shape = Shape(2, mib, "contiguous", 0)
        for _ in range(rounds):
            with store.running() as shared, instances(shape, "engine", shared.environment()) as running:
                take_and_return(available_mib() / 4)
                firsts.append(running[0].ask("a")["wall_s"])
                seconds.append(running[1].ask("a")["wall_s"])
                running[1].ask("v")
        found[mib] = {}
        for name, times in (("first", firsts), ("second", seconds)):
            times.sort()
            found[mib][f"{name}_ms"] = 1000 * times[len(times) // 2]
            found[mib][f"{name}_min_ms"], found[mib][f"{name}_max_ms"] = 1000 * times[0], 1000 * times[-1]
    return found
