"""§6.6, the sensitivity studies: Memento's gain with one thing changed, how far the layout of addresses alone
moves a result, and several processes on one core."""

from statistics import mean, stdev

from bench.sim.ratios import compared, faster, held, part, saved
from bench.sim.runs import IMPORT, RUNS


def experiments(runs: dict) -> dict:
    """Memento's gain with one side changed, beside `plain`, the gain with both as they are. An experiment of
    another allocator has the cost beyond the run that it is compared with."""
    flat = {}
    native, memento = runs.get("native"), runs.get("memento")
    for name, experiment in RUNS["experiments"].items():
        own = runs.get(experiment["against"])
        if not (native and memento and own and name in runs):
            continue
        if runs[name]["output"] != native["output"]:
            flat[f"experiment.{name}.failure"] = "its output is another"
        sides = {"native": (runs[name], memento), "memento": (native, runs[name])}
        pairs = (
            {name: sides[experiment["against"]], f"{name}.plain": (native, memento)}
            if experiment["against"] in sides
            else {}
        )
        for prefix, pair in pairs.items():
            flat[f"experiment.{prefix}.speedup_percent"] = faster(*pair)
            flat[f"experiment.{prefix}.traffic_saved_percent"] = compared(*pair)["traffic_saved_percent"]
            flat[f"experiment.{prefix}.pages_saved_percent"] = saved(*(sum(held(one)) for one in pair))
        flat |= {f"experiment.{name}.{key}": value for key, value in more(own, runs[name]).items()}
        # The imports', and with them the whole process'.
        imports = runs.get(IMPORT + experiment["against"]), runs.get(IMPORT + name)
        if all(imports):
            both = list(zip((own, runs[name]), imports, strict=True))
            for what, of in {
                "pages": lambda run: sum(held(run)),
                "cycles": lambda run: run["cycles"],
            }.items():
                whole = [of(call) + of(one) for call, one in both]
                flat[f"experiment.{name}.more_process_{what}_percent"] = 0.0 - saved(*whole)
    return flat


def more(before: dict, after: dict) -> dict:
    """How much more one run takes than another."""
    counts = {
        "cycles": (before["cycles"], after["cycles"]),
        "traffic": (before["dram.traffic_bytes"], after["dram.traffic_bytes"]),
        "pages": (sum(held(before)), sum(held(after))),
    }
    return {f"more_{what}_percent": 0.0 - saved(*both) for what, both in counts.items()}


def side_by_side(runs: dict) -> dict:
    """All allocators beside the baseline's: how much more each takes, in software and in hardware."""
    native = runs.get("native")
    others = ("mayfly", "mallacc", "memento", "speedmalloc")
    return {
        f"beside.{one}.{key}": value
        for one in others
        if native and one in runs
        for key, value in more(native, runs[one]).items()
    }


def layouts(runs: dict) -> dict:
    """The speed-up in layouts that differ in addresses only."""
    pairs = [
        [runs.get(f"layout-{number}-{one}") for one in RUNS["layouts"]["configurations"]]
        for number in RUNS["layouts"]["numbers"]
    ]
    found = [compared(*pair) for pair in pairs if all(pair)]
    if len(found) < 2:
        return {}
    flat = {"layouts": len(found)}
    for key in found[0]:
        values = [one[key] for one in found]
        stem = key.removesuffix("_percent")
        flat |= {
            f"layouts.{stem}.mean_percent": mean(values),
            f"layouts.{stem}.deviation_points": stdev(values),
        }
        flat |= {f"layouts.{stem}.least_percent": min(values), f"layouts.{stem}.most_percent": max(values)}
    return flat


def together(turns: dict) -> dict:
    """§6.6, several processes on one core: Memento's gain, and the cost of its flushes."""
    flat, gains = {}, []
    for pick, runs in turns.items():
        native, memento = runs.get("native", {}), runs.get("memento", {})
        if failed := native.get("failure") or memento.get("failure"):
            flat[f"{pick}.failure"] = failed
            continue
        if not (native and memento):
            continue
        if native["output"] != memento["output"]:
            flat[f"{pick}.failure"] = "their output under Memento is another"
        gains.append(faster(native, memento))
        flat |= {f"{pick}.{key}": value for key, value in compared(native, memento).items()}
        flat[f"{pick}.switches"] = memento["process_switches"]
        flat[f"{pick}.flush_percent"] = part(memento["memento.hot_flush_cycles"], memento["cycles"])
        flat[f"{pick}.flush_cycles"] = memento["memento.hot_flush_cycles"] / memento["memento.hot_flushes"]
        flat[f"{pick}.cycles_a_switch"] = memento["cycles"] / memento["process_switches"]
    if gains:
        flat |= {"together.picks": len(gains), "together.speedup_percent": mean(gains)}
        flat |= {"together.least_percent": min(gains), "together.most_percent": max(gains)}
        for one in ("flush_percent", "flush_cycles", "cycles_a_switch"):
            flat[f"together.{one}"] = mean(value for key, value in flat.items() if key.endswith(f".{one}"))
    return flat
