"""The cost of allocations and predictions: LLAMA Tables 1 and 4, Fig. 11b; with models of the image
server."""

import json

from bench.heap import build as heap_build
from bench.heap.measure import run_reporting
from bench.lifetime import learning, variants
from bench.lifetime.workloads import WORKLOADS
from bench.outcome import BenchError, Shown, at_most, figure, table

FRAMES, SIZES = 16, (64, 16)
ROUNDS = 3
# Lines of Table 4 (and Table 1's first two), ns: the key of bench/heap's `paths`, its label, and the
# paper's values with TCMalloc, without prediction and with a cached one.
PATHS = {
    "fast_64_ns": ("fast path", 8.3, 29.1, 48.8),
    "fast_64_2_threads_ns": ("fast path, 2 threads", None, 28.6, None),
    "fast_64_4_threads_ns": ("fast path, 4 threads", None, 28.7, None),
    "turnover_64_ns": ("global allocator", 81.7, 52.7, 88.0),
    "turnover_64_2_threads_ns": ("global allocator, 2 threads", None, 274.5, None),
    "turnover_64_4_threads_ns": ("global allocator, 4 threads", None, 802.2, None),
}
KINDS = ("tcmalloc", "without", "cached")
PAPER_MODEL_NS = 144_600


def measure(quick: bool) -> dict:
    """ns of a malloc and free of 64 B by path, and of the model by the frames of a context. Needs the profile
    that the comparison has made of the image server, and its model."""
    workload = WORKLOADS["image"]
    profiles = sorted(learning.FOLDER.glob(f"{workload.name}-*.symbols.parquet"))
    tables = [path.with_name(path.name.replace(".symbols", "")) for path in profiles]
    if not tables or not learning.model_path(workload, SIZES[0]).exists():
        raise BenchError(
            "no model of the image server: 'bench/lifetime/run --only image --variants model' makes it"
        )
    found: dict = {}
    for hidden in SIZES:
        # The time does not depend on the weights: the other size learns for one round only.
        if hidden != SIZES[0]:
            learning.train(workload, tables[:1], hidden, ["--rounds", "1"])
        model = learning.model_path(workload, hidden)
        options = ("--model", model, tables[0].with_suffix(".profile"), "--time", "--json")
        answer = json.loads(learning.mayfly("predict", *options, timeout_s=300))
        times = {int(key.split("_")[1].split(".")[0]): ns for key, ns in answer.items()}
        found[f"model.{hidden}.frames"] = list(times)
        found[f"model.{hidden}.us"] = [round(ns / 1000, 3) for ns in times.values()]
    return found | paths(learning.model_path(workload, SIZES[0]), quick)


def paths(model, quick: bool) -> dict:
    """Each kind in turn, and the fastest of each, since the machine may be busy."""
    kinds = {
        "tcmalloc": variants.made_from("tcmalloc", "", "tcmalloc"),
        "without": variants.made_from("without", "", "mayfly:fixed"),
        "cached": variants.model_only(model),
    }
    best: dict = {}
    for _ in range(ROUNDS):
        for kind, variant in kinds.items():
            numbers = run_reporting(variant, [heap_build.program("paths"), 45 if quick else 150])
            for path in PATHS:
                key = f"paths.{kind}.{path}"
                best[key] = min(best.get(key, numbers[path]), numbers[path])
    return best


def at(times: dict, hidden: int, frames: int) -> float | None:
    known = dict(
        zip(times.get(f"model.{hidden}.frames", []), times.get(f"model.{hidden}.us", []), strict=True)
    )
    return known.get(frames)


def shown(times: dict) -> list[Shown]:
    found = []
    us = at(times, 64, FRAMES)
    if us:
        found.append(at_most(f"model: a run on {FRAMES} frames, LSTM 64", 10, us, " µs"))
    cached, without = (times.get(f"paths.{kind}.fast_64_ns") for kind in ("cached", "without"))
    if cached and without:
        found.append(at_most("model: a cached prediction adds", 3, cached - without, " ns"))
    return found


def print_all(times: dict) -> None:
    print("\nTables 1 and 4: a malloc and a free of 64 B, ns, ours / the paper's")
    rows = [["", "tcmalloc", "Mayfly without prediction", "prediction cached"]]
    for path, (label, *paper) in PATHS.items():
        ours = [times.get(f"paths.{kind}.{path}") for kind in KINDS]
        rows.append(
            [label, *(f"{figure(mine)} / {figure(its)}" for mine, its in zip(ours, paper, strict=True))]
        )
    table(rows)
    print(f"\nTable 4, Fig. 11b: the model on {FRAMES} frames, ns, ours / the paper's")
    rows = [["", ""]]
    for hidden in SIZES:
        us = at(times, hidden, FRAMES)
        paper = figure(PAPER_MODEL_NS, 0) if hidden == 64 else "-"
        rows.append([f"LSTM {hidden}", f"{figure(us and us * 1000, 0)} / {paper}"])
    table(rows)
