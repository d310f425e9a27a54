"""The goals of learned lifetimes (LLAMA Table 3), and whether one run meets them."""

from dataclasses import replace

from bench.lifetime.results import PAPER, Results
from bench.outcome import Shown, at_least, at_most

STEADY_MOST = {"image": 1.2, "inference": 1.2, "pipeline": 1.2}
SLOWER_MOST_PERCENT = 3
ORACLE_MOST = 1.1
TABLE_LEAST_PERCENT = 95
HELD_OUT_LEAST = {"image": 97, "inference": 95, "pipeline": 97, "redis": 90}
MODEL_MOST_PERCENT = 2


def predictor(results: Results, workload: str) -> list[Shown]:
    """The cost of the model, by the heap's own counts (§9.4)."""
    runs = results.runs.get((workload, "model"))
    if not runs:
        return []
    heap, found = runs[-1].heap, []
    hits, misses = heap.get("heap.predictions.hits", 0), heap.get("heap.predictions.misses", 0)
    if hits + misses:
        percent = 100 * hits / (hits + misses)
        found.append(at_least(f"{workload}: predictions from the table", TABLE_LEAST_PERCENT, percent, "%"))
    size = heap.get("heap.model_bytes", 0) + heap.get("heap.predictions.tables_bytes", 0)
    peak = results.of(workload, "model", "peak_resident_mib") * (1 << 20)
    found.append(
        at_most(f"{workload}: model and tables by peak heap", MODEL_MOST_PERCENT, 100 * size / peak, "%")
    )
    return found


def shown(results: Results) -> list[Shown]:
    """The goals of the parts that this run measured."""
    found: list[Shown] = []
    for workload in results.workloads():
        ours, wanted = results.best(workload), PAPER[workload]
        for beside, label in (
            ("tcmalloc", "tcmalloc on huge pages"),
            ("tcmalloc_returning", "tcmalloc as the paper counts it"),
        ):
            reduction = results.reduction(workload, ours, beside)
            if reduction is not None:
                what = f"{workload}: less fragmentation than {label}, both in 2 MiB ranges"
                found.append(at_least(what, wanted["reduction"], 100 * reduction, "%"))
        steady = results.fragmentation(workload, ours)
        if steady and workload in STEADY_MOST:
            found.append(at_most(f"{workload}: steady memory by live", STEADY_MOST[workload], steady, "x"))
        oracle = results.oracle.get(workload, {}).get("mayfly.2MiB.average_ratio")
        if oracle:
            found.append(
                at_most(f"{workload}: right lifetimes, average memory by live", ORACLE_MOST, oracle, "x")
            )
        found += predictor(results, workload)
        slower = results.slowdown(workload, ours)
        if slower is not None:
            found.append(at_most(f"{workload}: slower than tcmalloc", SLOWER_MOST_PERCENT, 100 * slower, "%"))
    for workload, known in results.accuracy.items():
        found += held_out(workload, known)
    return found


def held_out(workload: str, known: dict[str, float]) -> list[Shown]:
    """Accuracy on a run that was not learned from, and the agreement of two runs of the program: no model can
    be much more accurate than another run is."""
    right, agree = (known.get(f"train.{name}_percent") for name in ("other_run.bytes", "profiles_agree"))
    if right is None:
        return []
    goal = at_least(f"{workload}: bytes right of another run", HELD_OUT_LEAST[workload], right, "%")
    return [replace(goal, measured=f"{goal.measured} (two runs agree on {agree:.3g}%)") if agree else goal]
