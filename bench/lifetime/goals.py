"""The goals of learned lifetimes (LLAMA Table 3, and memory beside the best peer), and whether one run meets
them."""

from dataclasses import replace

from bench.lifetime.results import PAPER, Results
from bench.outcome import Shown, at_least, at_most

STEADY_MOST = {"image": 1.2, "inference": 1.2, "pipeline": 1.2}
SLOWER_MOST_PERCENT = 3
ORACLE_MOST = 1.1
TABLE_LEAST_PERCENT = 95
HELD_OUT_LEAST = {"image": 97, "inference": 95, "pipeline": 97, "redis": 90}
MODEL_MOST_PERCENT = 2
# Memory with a model: the least that another allocator has, that of tcmalloc as the paper counts it, that
# without a model.
BY_BEST_PEER = {
    "end_ranges_mib": ("2 MiB ranges at the end", 1.0),
    "end_resident_mib": ("resident pages at the end", 0.95),
    "peak_resident_mib": ("resident pages at the peak", 1.02),
}
BY_COUNTED, BY_ONLINE = 0.75, 1.02


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


def by_others(results: Results, workload: str) -> list[Shown]:
    """Memory with a model beside that of others, each in one unit on both sides."""
    of = lambda variant, what: results.of(workload, variant, what)  # noqa: E731
    found = []
    for what, (label, most) in BY_BEST_PEER.items():
        ours, best = of("model", what), results.best_peer(workload, what)
        if ours and best:
            found.append(at_most(f"{workload}: {label}, by the best peer's", most, ours / best, "x"))
    for what, (label, _) in BY_BEST_PEER.items():
        ours, online = of("model", what), of("online", what)
        if ours and online:
            what = f"{workload}: {label}, by those without a model"
            found.append(at_most(what, BY_ONLINE, ours / online, "x"))
    ours, counted = of("model", "end_ranges_mib"), of("tcmalloc_returning", "end_ranges_mib")
    if ours and counted:
        what = f"{workload}: 2 MiB ranges at the end, by tcmalloc's as the paper counts"
        found.append(at_most(what, BY_COUNTED, ours / counted, "x"))
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
        found += by_others(results, workload) + predictor(results, workload)
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
