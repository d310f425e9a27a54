"""What merging is to show, and whether one run shows it: enough, or falling short."""

from bench.outcome import Shown, at_least, at_most


def reduction_percent(flat: dict, network: str, method: str, metric: str = "16.each_mib") -> float | None:
    """How much less than without merging."""
    plain, merged = (flat.get(f"models.{network}.{name}.{metric}") for name in ("nothing", method))
    return 100 * (1 - merged / plain) if plain and merged else None


def shown(flat: dict) -> list[Shown]:
    """Only what this run measured."""
    found = []
    for pattern in ("contiguous", "scattered", "alternating"):
        over = flat.get(f"regions.{pattern}.engine.over_ideal_percent")
        if over is not None:
            found.append(at_most(f"engine, {pattern}: memory over the ideal", 3, over, "%"))
    for metric, label, limit in (("cpu_s", "CPU", 1 / 5), ("wall_s", "time", 1 / 4)):
        ours, best = (flat.get(f"regions.contiguous.{method}.{metric}") for method in ("engine", "ksm_best"))
        if ours and best:
            found.append(at_most(f"engine: {label} beside KSM's best", limit, ours / best, "x"))
    for call, limit in (("merging", 2.5), ("first", 1.5)):
        rate = flat.get(f"regions.contiguous.engine.{call}_call_mib_per_s")
        if rate:
            found.append(at_least(f"engine: {call} call", limit, rate * (1 << 20) / 1e9, " GB/s"))
    for network in ("resnet50", "alexnet", "minilm", "opennsfw"):
        for method in ("pack", "all", "process"):
            less = reduction_percent(flat, network, method)
            if less is not None:
                what = f"{network}, {method}: memory of each of 16 instances less by"
                found.append(at_least(what, 55, less, "%"))
            slower = flat.get(f"cold.{network}.{method}.total_longer_percent")
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
