"""Workers that have loaded the same model of PyTorch, or of transformers, each for itself: memory of all
together, time of an answer; plain, with the model advised, and with all of each worker advised, under
`mayfly share run`.

One fleet at a time, for eight plain workers take gigabytes. A plain worker is asked in turn with it, so that
a slow moment of the machine hits both, and has ended when memory is read."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from bench.merge import environment, private_pages, store
from bench.merge.json_process import JsonProcess, fleet
from bench.merge.machine import MAYFLY, kib_lines, memory_of
from bench.merge.store import Store
from bench.outcome import BenchError, medians

MODELS = {
    "resnet50": "torch.load of a state_dict, 102 MB",
    "bert": "transformers' from_pretrained, 267 MB in safetensors",
}
METHODS = ["plain", "advise", "process"]
ROWS = {"plain": "plain", "advise": "packed and advised", "process": "all of each worker"}
REST_S = 1.0
BATCH = 5
Numbers = dict[str, float]
# As `mayfly share run` gives to the processes of one command; these are several, of one store.
ONE_SEED = {"PYTHONHASHSEED": "20"}
NO_HUB = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class Worker(JsonProcess):
    """One worker, from its start to its first answer."""

    def __init__(self, model: str, method: str, extra: dict[str, str]):
        launcher = [] if method == "plain" else [MAYFLY, "share", "run", "--"]
        program = [environment.python(), "-m", "bench.merge.model.worker"]
        command = [*launcher, *program, model, method, environment.model_files()]
        super().__init__(f"{model} {method}", command, environment.variables() | NO_HUB | extra)
        self.first = self.answer()


def started(model: str, method: str, count: int, shared: Store | None, into: list[Worker]) -> None:
    """Starts workers, as many at a time as there are processors."""
    extra = shared.environment() | ONE_SEED if shared else {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in pool.map(lambda _: Worker(model, method, extra), range(count)):
            into.append(one)


def memory(workers: list[Worker], shared: Store | None) -> Numbers:
    """MiB of all together: PSS, the store's process, and its pages that none has mapped now. `files`: the
    part that is pages of files, libraries' text and mapped weights, which the page cache has once for all
    processes. `own`: the rest. `private.*`: pages that one worker has alone."""
    pids = [one.pid for one in workers]
    of_all = memory_of(pids)
    numbers = {"system_mib": of_all["pss"], "store_mib": 0.0}
    if shared:
        daemon = memory_of([shared.pid])
        numbers["store_mib"] = shared.blocks_mib()
        untouched = numbers["store_mib"] - of_all["pss_store"] - daemon["pss_store"]
        numbers["system_mib"] += daemon["pss"] + max(0.0, untouched)
    numbers["files_mib"] = sum(kib_lines(f"/proc/{pid}/smaps_rollup")["Pss_File"] for pid in pids) / 1024
    numbers["own_mib"] = numbers["system_mib"] - numbers["files_mib"]
    kinds = private_pages.of_processes(pids).items()
    return numbers | {f"private.{kind}_mib": mib for kind, mib in kinds}


def asked(worker: Worker, first: int, count: int, answers: dict[int, str]) -> list[float]:
    """Milliseconds of some requests. Each request has one and the same answer of all workers, bit by bit."""
    given = worker.ask(f"ask {first} {count}\n")
    for number, digest in enumerate(given["answers"], first):
        if answers.setdefault(number, digest) != digest:
            raise BenchError(f"{worker.name}: another answer to request {number} than other workers'")
    return given["ms"]


def in_turn(workers: list[Worker], beside: Worker, requests: int, answers: dict[int, str]) -> Numbers:
    """P50 of the workers and of the plain one beside them."""
    times: dict[str, list[float]] = {"p50_ms": [], "beside_ms": []}
    for begin in range(1, requests + 1, BATCH):
        for worker in workers:
            times["p50_ms"] += asked(worker, begin, BATCH, answers)
            times["beside_ms"] += asked(beside, begin, BATCH, answers)
    found = {key: median(taken) for key, taken in times.items()}
    return found | {"p50_ratio": found["p50_ms"] / found["beside_ms"]}


def measured(model: str, method: str, count: int, requests: int, answers: dict[int, str]) -> Numbers:
    """One fleet: it answers, rests, shares, answers again."""
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(store.running()) if method != "plain" else None
        workers = stack.enter_context(fleet())
        started(model, method, count, shared, workers)
        for worker in workers:
            if answers.setdefault(0, worker.first["answer"]) != worker.first["answer"]:
                raise BenchError(f"{worker.name}: another first answer than other workers'")
        time.sleep(REST_S)
        for worker in workers:
            worker.send("share\n")
        numbers = {"share_ms": median(worker.answer()["share_ms"] for worker in workers)}
        numbers["load_ms"] = median(worker.first["load_ms"] for worker in workers)
        for worker in workers:
            asked(worker, 0, 1, answers)
        with fleet() as beside:
            started(model, "plain", 1, None, beside)
            numbers |= in_turn(workers, beside[0], requests, answers)
        return numbers | memory(workers, shared)


def compare(model: str, count: int, requests: int, rounds: int) -> Numbers:
    """All methods, in rounds, in turn; medians, and the least and the most of the rounds."""
    found: dict[str, list[Numbers]] = {method: [] for method in METHODS}
    answers: dict[int, str] = {}
    environment.model_files()  # before workers start, which would write them all at the same time
    for _ in range(rounds):
        for method in METHODS:
            numbers = measured(model, method, count, requests, answers)
            found[method].append(numbers)
            plain = found["plain"][-1]
            for key in ("system", "own"):
                numbers[f"{key}_ratio"] = numbers[f"{key}_mib"] / plain[f"{key}_mib"]
    numbers = {"workers": count, "requests": requests, "answers": len(answers), "rounds": rounds}
    for method, runs in found.items():
        numbers |= {f"{method}.{key}": value for key, value in medians(runs).items() if key != "rounds"}
    return numbers
