"""The goals of the evaluation of partitions, and whether a run met them."""

from bench.outcome import Shown, at_least, at_most
from bench.vm.results import LOADED, Results


def goals(results: Results) -> list[Shown]:
    """The goals whose numbers this run measured."""
    found = []
    for name in ("nodes", "ranges", "hotmem"):
        if (migrated := results.migrated(name)) is not None:
            found.append(at_most(f"{name}: pages migrated in all unplugs", 0, migrated, ""))
    for point in results.points("unplug"):
        if ratio := results.ratio("unplug", f"{point}.unplug_ms", "plain", "hotmem"):
            found.append(at_least(f"hotmem: unplug faster than plain, {point}, full VM", 15, ratio, "x"))
        if ratio := results.ratio("unplug", f"{point}.whole_ms", "ranges", "hotmem"):
            what = f"ranges: a whole unplug over hotmem's, {point}, full VM"
            found.append(at_most(what, 1.2, ratio, "x"))
    if (flatness := results.flatness("hotmem")) is not None:
        what = "hotmem: unplug at 10% ... 90% memory use, farthest from the median"
        found.append(at_most(what, 20, 100 * flatness, "%"))
    if returned := results.median("unplug", "hotmem", f"{LOADED}.returned_share"):
        what = "hotmem: of the unplugged bytes gone from the host's RSS"
        found.append(at_least(what, 95, 100 * returned, "%"))
    on, off = (results.median("zeroing", "hotmem", f"init_on_alloc_{n}.unplug_ms") for n in (1, 0))
    if on and off:
        found.append(at_most("hotmem: unplug with init_on_alloc=1, over 0", 1.3, on / off, "x"))
    during = results.median("interference", "hotmem", "during_ratio")
    if during is not None:
        what = "hotmem: a co-located instance's requests while four others are evicted, over its calm"
        found.append(at_most(what, 0.5, 100 * (during - 1), "%"))
    names = results.names("interference")
    worst = {name: results.median("interference", name, "worst_second_ratio") for name in names}
    noise = max((results.median("interference", name, "calm_spread_ratio") or 0 for name in names), default=0)
    if worst.get("hotmem") and worst.get("static"):
        # Evictions without any unplug have a cost, too.
        what = "hotmem: its worst second, over its calm; static's, or the worst second of its calm"
        limit = max(worst["static"], noise)
        found.append(at_most(what, round(100 * (limit - 1), 1), 100 * (worst["hotmem"] - 1), "%"))
    return found
