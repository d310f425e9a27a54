"""Instances of model servers, merged in different ways: cold start (UPM Fig. 8, Table I), memory of each
and of all (Fig. 5, 6), answers bit by bit, and potential sharing (Fig. 1)."""

import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench.merge import environment, page_sharing, store
from bench.merge.environment import DEBIAN
from bench.merge.json_process import JsonProcess, fleet
from bench.merge.machine import (
    KSM_BEST,
    KSM_DEFAULT,
    available_mib,
    cpu_s,
    ksm_merged_pages,
    ksm_running,
    ksmd,
    memory_of,
)
from bench.merge.regions import PHASES, Numbers
from bench.merge.store import Store
from bench.outcome import ROOT, BenchError

NETWORKS = {
    "resnet50": "pt",
    "alexnet": "pt",
    "minilm": "pt",
    "opennsfw": "onnx",
    f"resnet50{DEBIAN}": "pt",
    f"alexnet{DEBIAN}": "pt",
}
# The paper's functions of SeBS, with the event of an instance: HTML, a thumbnail, a line of a DNA, a search.
FUNCTIONS: dict[str, dict] = {
    "page": {"rows": 1000},
    "thumbnail": {},
    "dna": {"length": 100_000},
    "bfs": {"size": 10_000},
}
METHODS = {
    "resnet50": ["nothing", "mmap", "advise", "pack", "all", "process"],
    "alexnet": ["nothing", "mmap", "pack", "all", "process"],
    "minilm": ["nothing", "mmap", "pack", "all", "process"],
    "opennsfw": ["nothing", "all", "process"],
    f"resnet50{DEBIAN}": ["nothing", "pack", "process"],
    f"alexnet{DEBIAN}": ["nothing", "pack", "process"],
}
MERGING = ("advise", "pack", "all", "process")
LAYOUT = "_layout"  # ends the name of a method whose instances all have one layout
# Instances without address space layout randomisation, and with the same order in sets: equal to the last
# table.
SAME_LAYOUT = ("setarch", "--addr-no-randomize", "env", "PYTHONHASHSEED=0")
# More requests, to let an instance's memory settle (UPM §VI-C).
WARM = 5
COUNTS = [1, 2, 4, 8, 16]


class Warm(JsonProcess):
    """A process that has answered once, and tells how long that took; `cold` is that answer."""

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], folder: Path | None = None
    ):
        begun = time.monotonic()
        super().__init__(name, command, environment, folder)
        self.cold = self.answer()
        self.cold["total_ms"] = 1000 * (time.monotonic() - begun)

    def warm(self, requests: int = WARM) -> Numbers:
        return self.ask(f"{requests}\n")


class Instance(Warm):
    def __init__(
        self, network: str, method: str, number: int, extra: dict[str, str], prefix: tuple[str, ...] = ()
    ):
        name = network.removesuffix(DEBIAN)
        file = environment.model_files(network) / f"{name}.{NETWORKS[network]}"
        if method == "process" or method.endswith(LAYOUT):
            prefix = SAME_LAYOUT
        command = [
            *prefix,
            environment.python_of(network),
            "-m",
            "bench.merge.model.instance",
            name,
            method.removesuffix(LAYOUT),
            file,
            str(number),
        ]
        super().__init__(f"{network} {method} {number}", command, environment.variables() | extra)


class FunctionInstance(Warm):
    def __init__(self, name: str, method: str, number: int, prefix: tuple[str, ...] = ()):
        python = environment.python_of_functions(tuple(FUNCTIONS))
        if method.endswith(LAYOUT):
            prefix = SAME_LAYOUT
        words = [str(number), json.dumps(FUNCTIONS[name]), method.removesuffix(LAYOUT)]
        command = [*prefix, python, "-m", "bench.merge.model.function", *words]
        folder = environment.FUNCTIONS / name
        super().__init__(f"{name} {method} {number}", command, {"PYTHONPATH": str(ROOT)}, folder)


def memory(started: list[Instance], shared: Store | None, free_before: float) -> Numbers:
    """Fig. 5 (an instance) and Fig. 6 (all of them), in MiB.

    PSS counts a store page only while a process has it in its page table. So the store's untouched pages are
    added: all of them to the system's sum, and to each instance its part. The daemon belongs to the
    system."""
    pids = [one.pid for one in started]
    of_all = memory_of(pids)
    count = len(pids)
    numbers = {f"{key}_mib": of_all[key] / count for key in ("pss", "rss", "private", "anonymous")}
    system = of_all["pss"] + of_all["page_tables"]
    store_mib = untouched = 0.0
    if shared:
        daemon = memory_of([shared.pid])
        store_mib = shared.blocks_mib()
        untouched = max(0.0, store_mib - of_all["pss_store"] - daemon["pss_store"])
        system += untouched + daemon["pss"] + daemon["page_tables"]
    numbers["each_mib"] = numbers["pss_mib"] + untouched / count
    numbers["anonymous_and_store_mib"] = numbers["anonymous_mib"] + store_mib / count
    numbers["system_mib"] = system
    numbers["available_drop_mib"] = free_before - available_mib()
    return numbers


def run(network: str, method: str, counts: list[int]) -> Numbers:
    """Starts as many instances as the largest count; measures whenever a count is reached."""
    numbers: Numbers = {}
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(store.running()) if method in MERGING else None
        free_before = available_mib()
        started = stack.enter_context(fleet())
        extra = shared.environment() if shared else {}
        for count in counts:
            start_until(started, count, network, method, extra)
            for key, value in memory(started, shared, free_before).items():
                numbers[f"{count}.{key}"] = value
        for key in ("warm_ms", "advise_process_ms"):
            numbers[key] = median(one.warmed[key] for one in started)
        if shared:
            numbers["daemon_cpu_s"] = shared.cpu_s()
        numbers["answer"] = one_answer(started)
    return numbers


def start_until(
    started: list, count: int, network: str, method: str, extra: dict[str, str], warm: int = WARM
) -> None:
    """Starts and warms instances until there are `count`, as many at a time as there are processors."""

    def start(number: int) -> None:
        if network in FUNCTIONS:
            one = FunctionInstance(network, method, number)
        else:
            one = Instance(network, method, number, extra)
        started.append(one)
        one.warmed = one.warm(warm)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(start, range(len(started), count)))


def one_answer(started: list[Instance]) -> str:
    """Every instance's answer to the same request, cold and after six others: one and the same, bit by
    bit."""
    answers = {text for one in started for text in (one.cold["answer"], one.warmed["answer"])}
    if len(answers) != 1:
        raise BenchError(f"{started[0].name}: instances give {len(answers)} different answers to one request")
    return answers.pop()


def cold(network: str, rounds: int) -> dict[str, Numbers]:
    """Fig. 8 and Table I, a dict for each method.

    Each merging method has a store and an instance which stays and whose pages the later ones merge with.
    Then one instance of each method is started in every round and ended again, and so is one with a store of
    its own, which is the first there: a slow moment of the machine hits all methods, so a start is compared
    with the same round's plain start.
    """
    methods = METHODS[network]
    environment.compile_package(network)
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(fleet())
        extra: dict[str, dict[str, str]] = {}
        for method in methods:
            shared = stack.enter_context(store.running()) if method in MERGING else None
            extra[method] = shared.environment() if shared else {}
            kept.append(Instance(network, method, 0, extra[method]))
        first: dict[str, list[Numbers]] = {method: [] for method in methods if method in MERGING}
        later: dict[str, list[Numbers]] = {method: [] for method in methods}
        for number in range(1, rounds + 1):
            for method in methods:
                with fleet() as one:
                    one.append(Instance(network, method, number, extra[method]))
                    later[method].append(one[0].cold)
            for method in first:
                with store.running() as own, fleet() as one:
                    one.append(Instance(network, method, number, own.environment()))
                    first[method].append(one[0].cold)
    found: dict[str, Numbers] = {}
    for method in methods:
        found[method] = {}
        for which, colds in (("first", first.get(method)), ("later", later[method])):
            if not colds:
                continue
            found[method] |= about_calls(which, colds)
            for metric in ("total", "cpu"):
                pairs = zip(colds, later["nothing"], strict=True)
                longer = [100 * (ours[f"{metric}_ms"] / plain[f"{metric}_ms"] - 1) for ours, plain in pairs]
                found[method][f"{which}.{metric}_longer_percent"] = median(longer)
    return found


def about_calls(which: str, colds: list[Numbers]) -> Numbers:
    """Medians of the steps' times; and of all advise calls together, their counts and the times of
    their steps."""
    found: Numbers = {}
    for key in sorted(set().union(*colds)):
        if key.endswith("_ms"):
            found[f"{which}.{key}"] = median(one.get(key, 0) for one in colds)
    total = sum(one.get("stats.total_ns", 0) for one in colds)
    if total:
        for phase in PHASES:
            found[f"{which}.{phase}_percent"] = 100 * sum(one[f"stats.{phase}_ns"] for one in colds) / total
        pages = sum(one["stats.pages"] for one in colds)
        found[f"{which}.advised_mib"] = pages / len(colds) / 256
        found[f"{which}.merged_percent"] = 100 * sum(one["stats.merged_pages"] for one in colds) / pages
    return found


def run_ksm(network: str, best: bool, count: int, limit_s: float) -> Numbers:
    """The whole of every instance given to KSM; measured when nothing more has merged for a while, or at
    the limit."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(ksm_running(KSM_BEST if best else KSM_DEFAULT))
        free_before, scanner = available_mib(), cpu_s(ksmd())
        started = stack.enter_context(fleet())
        start_until(started, count, network, "ksm", {})
        pids = [one.pid for one in started]
        begun, most, grew = time.monotonic(), 0, time.monotonic()
        while (now := time.monotonic()) - begun < limit_s and now - grew < (10 if best else limit_s):
            time.sleep(0.2)
            if (merged := ksm_merged_pages(pids)) > 1.002 * most:
                most, grew = merged, time.monotonic()
        numbers = {f"{count}.{key}": value for key, value in memory(started, None, free_before).items()}
        numbers["settled_s"] = (grew if best else now) - begun
        numbers["ksmd_cpu_s"] = cpu_s(ksmd()) - scanner
        numbers["answer"] = one_answer(started)
    return numbers


def sharing(name: str, aslr: bool) -> Numbers:
    """Fig. 1: two instances of a network or a function, plain, on different inputs."""
    prefix = () if aslr else ("setarch", "--addr-no-randomize")
    with fleet() as started:
        for number in range(2):
            if name in FUNCTIONS:
                started.append(FunctionInstance(name, "nothing", number, prefix))
            else:
                started.append(Instance(name, "nothing", number, {}, prefix))
            started[-1].warm()
        return page_sharing.classify(page_sharing.stopped_snapshots([one.pid for one in started]))
