"""The heap's goals beside its peers, and whether one run meets them."""

from bench.heap.results import Results
from bench.heap.workload_list import WORKLOADS
from bench.outcome import Shown, at_most


def shown(results: Results) -> list[Shown]:
    """The goals for what this run measured; a run of one workload leaves the others out."""
    found = []
    peers = [one.name for one in results.allocators if one.base != "mayfly" and not one.variant]
    for path in ("fast_64", "ring_64"):
        times = [results.median("paths", peer, path + "_ns") for peer in peers]
        fastest = min((time for time in times if time), default=None)
        ours = results.median("paths", "mayfly", path + "_ns")
        if ours and fastest:
            found.append(at_most(f"{path} beside the fastest peer", 1.0, ours / fastest, "x"))
    for metric, label, limit in (("time_ms", "time", 1.0), ("peak_rss_kib", "peak RSS", 1.05)):
        best, ours = results.best_peer(metric), results.geometric_mean("mayfly", metric)
        if best and ours:
            what = f"geometric mean of {label} beside the best peer's ({best[0]})"
            found.append(at_most(what, limit, ours / best[1], "x"))
        counted = (one.name for one in WORKLOADS.values() if metric == "time_ms" or one.has_memory)
        ratios = [(ratio, name) for name in counted if (ratio := results.ratio(name, "mayfly", metric))]
        if ratios:
            ratio, name = max(ratios)
            found.append(at_most(f"{label} beside the best, where it is worst ({name})", 1.3, ratio, "x"))
    for name, label, limit in (
        ("mayfly:oracle", "with right lifetimes", 22),
        ("mayfly", "online, without a model", 30),
    ):
        kib = results.median("swing", name, "rss_kib")
        if kib:
            found.append(at_most(f"swing: resident at the end, {label}", limit, kib / 1024, " MiB"))
    kib = results.median("small", "mayfly", "sleep.private_kib")
    if kib:
        found.append(at_most("sleep: private memory", 300, kib, " KiB"))
    for metric, label in (("python.private_kib", "memory"), ("python.start_ms", "time")):
        ours, theirs = (results.median("small", name, metric) for name in ("mayfly", "glibc"))
        if ours and theirs:
            found.append(at_most(f"python -c pass: {label} beside glibc's", 1.1, ours / theirs, "x"))
    for moment, label in (("", "at the end"), ("deleted.", "after deleting most")):
        for unit, counted in (("ranges_kib", "2 MiB ranges"), ("rss_kib", "resident bytes")):
            part = results.redis_reduction(moment=moment, unit=unit)
            if part is not None:
                what = f"redis {label}: less fragmentation than tcmalloc on huge pages, in {counted}"
                found.append(Shown(what, ">= 50%", f"{part:.0%}", part >= 0.5))
    return found
