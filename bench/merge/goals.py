"""The goals of merging, and whether one run reaches them."""

from bench.outcome import Shown, at_least, at_most


def reduction_percent(flat: dict, network: str, method: str, metric: str = "16.each_mib") -> float | None:
    """The reduction against no merging."""
    plain, merged = (flat.get(f"models.{network}.{name}.{metric}") for name in ("nothing", method))
    return 100 * (1 - merged / plain) if plain and merged else None


def shown(flat: dict) -> list[Shown]:
    """The goals that this run has measured."""
    found = []
    for pattern in ("contiguous", "scattered", "alternating"):
        over = flat.get(f"regions.{pattern}.engine.over_ideal_percent")
        if over is not None:
            found.append(at_most(f"engine, {pattern}: memory over the ideal", 3, over, "%"))
    for pattern, method, label, limit in (
        ("contiguous", "engine", "one after another", 1 / 5),
        ("contiguous", "engine_at_once", "all at once", 1 / 5),
        ("scattered", "engine", "scattered", 1 / 4),
    ):
        ours, best = (flat.get(f"regions.{pattern}.{name}.cpu_s") for name in (method, "ksm_best"))
        # Where KSM was stopped before it was done its time is no measure.
        if ours and best and flat[f"regions.{pattern}.ksm_best.merged_percent"] > 98:
            found.append(at_most(f"engine, {label}: CPU beside KSM's best", limit, ours / best, "x"))
    for call, limit in (("first", 2), ("merging", 4)):
        rate = flat.get(f"regions.contiguous.engine.{call}_call_mib_per_s")
        if rate:
            found.append(at_least(f"engine: {call} call", limit, rate * (1 << 20) / 1e9, " GB/s"))
    if rate := flat.get("regions.contiguous.engine.again_mib_per_s"):
        found.append(at_least("engine: again, nothing changed", 30, rate * (1 << 20) / 1e9, " GB/s"))
    for way in ("rows", "random", "gemv"):
        if ratio := flat.get(f"reads.{way}.merged_ratio"):
            found.append(at_most(f"reading a merged table, {way}: time", 1.05, ratio, "x"))
    for key, label, limit in (("system", "memory", 0.45), ("p99", "P99", 1.02), ("start", "start", 1.05)):
        for method in ("pack", "process"):
            if ratio := flat.get(f"servers.{method}.{key}_ratio"):
                found.append(at_most(f"gunicorn, {method}: {label} beside plain", limit, ratio, "x"))
    for key, label, most in (("system", "memory", 0.35), ("p50", "P50", 1.02)):
        if ratio := flat.get(f"tables.process.{key}_ratio"):
            found.append(at_most(f"tables, process: {label} beside plain", most, ratio, "x"))
    if p99 := flat.get("tables.process.p99_ms"):
        most = round(flat["tables.plain.p99_ms_max"], 2)
        found.append(at_most("tables, process: P99 within the spread of plain's", most, p99, " ms"))
    for model in ("resnet50", "bert"):
        for key, label, most in (("system", "memory", 0.7), ("p50", "P50", 1.02)):
            if ratio := flat.get(f"torch.{model}.process.{key}_ratio"):
                found.append(at_most(f"workers of {model}, process: {label} beside plain", most, ratio, "x"))
    for network, limit in (("resnet50-debian", 26), ("alexnet-debian", 55)):
        if (less := reduction_percent(flat, network, "pack")) is not None:
            found.append(at_least(f"{network}, parameters alone: memory less by", limit, less, "%"))
    for network in ("resnet50", "alexnet", "minilm", "opennsfw"):
        for method in ("pack", "all", "process"):
            less = reduction_percent(flat, network, method)
            if less is not None:
                what = f"{network}, {method}: memory of each of 16 instances less by"
                found.append(at_least(what, 55, less, "%"))
            slower = flat.get(f"cold.{network}.{method}.later.total_longer_percent")
            if slower is not None:
                found.append(at_most(f"{network}, {method}: cold start longer by", 5, slower, "%"))
        for method in ("pack", "all", "process"):
            ours, mmap = (flat.get(f"models.{network}.{name}.16.each_mib") for name in (method, "mmap"))
            if ours and mmap:
                what = f"{network}, {method}: memory beside torch.load(mmap=True)"
                found.append(at_most(what, 1, ours / mmap, "x"))
        if (same := flat.get(f"models.{network}.answers_identical")) is not None:
            found.append(Shown(f"{network}: answers bit-identical", "yes", "yes" if same else "no", same))
    return found
