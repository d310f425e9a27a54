"""What allocations and predictions cost: LLAMA Tables 1 and 4, Fig. 11b. The model is the image server's."""

import json

from bench.heap import build as heap_build
from bench.heap.measure import RunFailed, run_reporting
from bench.lifetime import learning, variants
from bench.lifetime.workloads import WORKLOADS
from bench.outcome import Shown, at_most, figure, table

# LLAMA Tables 1 and 4, ns.
PAPER = {"tcmalloc": 8.3, "without": 29.1, "cached": 48.8, "model": 144_600}
FRAMES, SIZES = 16, (64, 16)


def measure(quick: bool) -> dict:
    """ns of a malloc and free of 64 B on the fast path, and of the model by the frames of a context. Needs
    the profile that the comparison has made of the image server."""
    workload = WORKLOADS["image"]
    profile = learning.FOLDER / f"{workload.name}.parquet"
    if not profile.exists():
        raise RunFailed(f"{profile}: not there: 'bench/lifetime/run --only image --variants model' makes it")
    found: dict = {}
    for hidden in SIZES:
        model = learning.train(workload, [profile], hidden).path
        text = learning.mayfly(
            "predict", "--model", model, profile.with_suffix(".profile"), "--time", "--json", timeout_s=300
        )
        times = {int(key.split("_")[1].split(".")[0]): ns for key, ns in json.loads(text).items()}
        found[f"model.{hidden}.frames"] = list(times)
        found[f"model.{hidden}.us"] = [round(ns / 1000, 3) for ns in times.values()]
        if hidden == SIZES[0]:
            found |= paths(model, quick)
    return found


def paths(model, quick: bool) -> dict:
    """Three times each in turn, the fastest of each: the machine has other things to do."""
    kinds = {
        "tcmalloc": variants.made_from("tcmalloc", "", "tcmalloc"),
        "without": variants.made_from("without", "", "mayfly:fixed"),
        "cached": variants.model_only(model),
    }
    best: dict = {}
    for _ in range(3):
        for kind, variant in kinds.items():
            numbers = run_reporting(variant, [heap_build.program("paths"), 45 if quick else 150])
            key = f"paths.{kind}.fast_64_ns"
            best[key] = min(best.get(key, numbers["fast_64_ns"]), numbers["fast_64_ns"])
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
    print("\nTables 1 and 4: a malloc and a free, ns")
    rows = [["", "here", "paper"]]
    labels = {
        "tcmalloc": "tcmalloc, fast path",
        "without": "fast path without prediction",
        "cached": "fast path, prediction cached",
    }
    for kind, label in labels.items():
        rows.append([label, figure(times.get(f"paths.{kind}.fast_64_ns")), figure(PAPER[kind])])
    for hidden in SIZES:
        us = at(times, hidden, FRAMES)
        paper = figure(PAPER["model"], 0) if hidden == 64 else "-"
        rows.append([f"the model, LSTM {hidden}, {FRAMES} frames", figure(us and us * 1000, 0), paper])
    table(rows)
