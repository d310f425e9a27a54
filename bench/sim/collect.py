"""From the runs' statistics to bench/results/sim.json, and to a table beside the paper's numbers."""

import argparse
import json
import lzma
import math
import sys
from pathlib import Path
from statistics import mean, median

from bench.outcome import figure, table, write
from bench.sim.paper import AVERAGES, FUNCTIONS, GROUPS
from bench.sim.ratios import allocated, compared, counted_alike, counts_held, faster, held, part, saved
from bench.sim.runs import RUNS
from bench.sim.sensitivity import experiments, layouts, side_by_side, together

# The parts of Memento's gain: Fig. 9's four mechanisms, and the rest.
PARTS = ("object_alloc", "object_free", "page_management", "bypass", "program", "kernel")
# AWS Lambda's price (§6.5): by GB and second, in steps of a millisecond and a megabyte; and by request.
DOLLARS_PER_GB_S, DOLLARS_PER_REQUEST = 0.0000166667, 0.0000002


def process_pages(run: dict, imports: dict) -> int:
    """What the imports hold at their end, and the most that the call holds beside that."""
    return sum(held(imports, "end")) + sum(held(run))


def price(run: dict, imports: dict) -> float:
    """The call's time, and the memory that its process needs."""
    milliseconds = math.ceil(run["time_us"] / 1000)
    megabytes = math.ceil(process_pages(run, imports) * 4096 / 1e6)
    return DOLLARS_PER_GB_S * milliseconds / 1000 * megabytes / 1000


def exact_price(run: dict, imports: dict) -> float:
    """As Fig. 14, by the microsecond and the byte: no whole megabyte of one program makes the mean."""
    return run["time_us"] * process_pages(run, imports)


# Before a whole process nothing is held.
NOTHING = {f"held.{when}.{kind}_pages": 0 for when in ("end", "most") for kind in ("user", "kernel")}


def prices(runs: dict, is_whole: bool) -> dict:
    """Fig. 14, of programs whose imports were run as well, or as a part of the whole process."""
    sides = ("native", "memento")
    if is_whole:
        runs = {**runs, **{f"import-{side}": NOTHING for side in sides}}
    if not all(runs.get(f"{way}{side}") for way in ("", "import-") for side in sides):
        return {}
    pairs = [(runs[side], runs[f"import-{side}"]) for side in sides]
    found = [price(*pair) for pair in pairs]
    return {
        "cost_saved_percent": saved(*found),
        "cost_saved_with_requests_percent": saved(*(one + DOLLARS_PER_REQUEST for one in found)),
        "cost_saved_exact_percent": saved(*(exact_price(*pair) for pair in pairs)),
        "process_pages_saved_percent": saved(*(process_pages(*pair) for pair in pairs)),
    }


def objects(native: dict) -> dict:
    """Fig. 2 and 3, Table 1: shares of all allocations."""
    total = native["objects.allocations"]
    flat = {
        f"sizes.{key.removeprefix('objects.')}_percent": part(value, total)
        for key, value in native.items()
        if key.startswith(("objects.to_", "objects.larger"))
    }
    for bucket in ("within_16", "within_32", "within_64", "within_128", "within_256", "longer", "never"):
        both = [native[f"objects.{kind}.freed_{bucket}"] for kind in ("small", "large")]
        flat[f"lifetimes.{bucket}_percent"] = part(sum(both), total)
    for kind in ("small", "large"):
        short = native[f"objects.{kind}.freed_within_16"]
        everything = sum(value for key, value in native.items() if key.startswith(f"objects.{kind}.freed_"))
        flat[f"objects.{kind}_short_percent"] = part(short, total)
        flat[f"objects.{kind}_long_percent"] = part(everything - short, total)
    flat["objects.small_percent"] = flat["sizes.to_512_bytes_percent"]
    flat["objects.within_16_percent"] = flat["lifetimes.within_16_percent"]
    flat["objects.never_freed_percent"] = flat["lifetimes.never_percent"]
    return flat


def management(native: dict) -> dict:
    """Table 2: the share of memory management's cycles in user space and in the kernel."""
    user = native["cycles_by_owner.allocate"] + native["cycles_by_owner.free"]
    kernel = native["cycles_by_owner.page_fault"] + native["cycles_by_owner.memory_call"]
    return {
        "management.user_percent": part(user, user + kernel),
        "management.of_cycles_percent": part(user + kernel, native["cycles"]),
    }


def memory(native: dict, memento: dict) -> dict:
    """Fig. 11: pages held, and beside them all that were allocated, which the paper counts."""
    before, after = held(native), held(memento)
    all_before, all_after = allocated(native), allocated(memento)
    taken = allocated(memento, "allocated")
    return {
        "user_pages_saved_percent": saved(before[0], after[0]),
        "kernel_pages_saved_percent": saved(before[1], after[1]),
        "pages_saved_percent": saved(sum(before), sum(after)),
        "pages_allocated_saved_percent": saved(sum(all_before), sum(all_after)),
        "pages_saved_each_taking_percent": saved(sum(all_before), sum(taken)),
        "inactive_slots_percent": 100 * memento["memento.inactive_slots"],
        **{
            f"end_inactive_{one}_percent": 100 * memento[f"memento.end.inactive_{one}"]
            for one in ("slots", "slots_in_use", "bytes")
            if f"memento.end.inactive_{one}" in memento  # not in runs of before
        },
        "memento.arena_pages": memento["memento.pages_from_os.data"],
        "memento.table_pages": memento["memento.pages_from_os.tables"],
    }


def units(memento: dict) -> dict:
    """Fig. 12 and 13; operations that never occurred have no rate."""
    flat = {}
    for operation in ("allocation", "free"):
        if all_of_them := memento[f"memento.{operation}s"]:
            lists = memento[f"memento.{operation}s_with_list_operations"]
            flat[f"hot.{operation}_hits_percent"] = 100 * memento[f"memento.{operation}_hit_rate"]
            flat[f"lists.{operation}s_percent"] = part(lists, all_of_them)
    return flat


def breakdown(runs: dict, native: dict, memento: dict) -> dict:
    """Fig. 9: where the cycles are that Memento has not, in percent of the baseline's. They sum to the gain.

    The machine attributes each cycle to an owner, the allocator among them, in both runs. Of the cycles that
    are neither the allocator's nor the kernel's work on memory, the bypass has as many as the run without it
    takes more; the others are the program's own: other caches, TLBs and branches.
    """
    without = runs.get("without-bypass")
    if not without:
        return {}
    owners = {key: value for key, value in native.items() if key.startswith("cycles_by_owner.")}
    less = {key.removeprefix("cycles_by_owner."): value - memento[key] for key, value in owners.items()}
    bypass = without["cycles"] - memento["cycles"]
    pages_less = less["page_fault"] + less["memory_call"]
    cycles = (less["allocate"], less["free"], pages_less, bypass, less["user"] - bypass, less["kernel"])
    parts = dict(zip(PARTS, cycles, strict=True))
    gain = native["cycles"] - memento["cycles"]
    assert sum(parts.values()) == gain, "the parts of the gain are the gain"
    flat = {f"gain.{one}_percent": part(cycles, native["cycles"]) for one, cycles in parts.items()}
    flat["gain.all_percent"] = part(gain, native["cycles"])
    more = without["dram.traffic_bytes"] - memento["dram.traffic_bytes"]
    flat["traffic_saved_by_bypass_percent"] = part(more, native["dram.traffic_bytes"])
    return flat


def refused(runs: dict) -> dict:
    """Why a run is no result: its sources had changes, or the two sides are not one program."""
    flat = {}
    for name, run in runs.items():
        if str(run.get("made_with.commit", "")).endswith("-dirty"):
            flat[f"{name}.failure"] = "its sources had changes that no commit has"
    for prefix in ("", "import-", "warm-"):
        both = [runs[f"{prefix}{one}"] for one in ("native", "memento") if f"{prefix}{one}" in runs]
        names = {run["made_with.program"] for run in both if "made_with.program" in run}
        if len(names) > 1:
            flat[f"{prefix}memento.failure"] = "it is another program than the baseline's"
    return flat


def program(runs: dict, is_whole: bool = False) -> dict:
    flat = refused(runs)
    runs = {name: run for name, run in runs.items() if f"{name}.failure" not in flat}
    runs = counted_alike(runs)
    native, memento = runs.get("native"), runs.get("memento")
    if native and memento:
        flat |= compared(native, memento) | units(memento) | breakdown(runs, native, memento)
        flat |= memory(native, memento) | prices(runs, is_whole)
        flat["pages_held"] = int(counts_held(native))
        if native["output"] != memento["output"]:
            flat["memento.failure"] = "its output under Memento is another"
    if native and "objects.allocations" in native:
        flat |= objects(native) | management(native)
        flat["malloc_pki"] = 1000 * native["objects.allocations"] / native["instructions"]
    for region in ("import", "warm"):
        both = runs.get(f"{region}-native"), runs.get(f"{region}-memento")
        if all(both):
            flat |= {f"{region}.{key}": value for key, value in compared(*both).items()}
    imports = runs.get("import-native"), runs.get("import-memento")
    if native and memento and all(imports):
        # A cold start: the imports and the first call (§6.6).
        whole = [
            {"cycles": one["cycles"] + its["cycles"]}
            for one, its in zip(imports, (native, memento), strict=True)
        ]
        flat["cold.speedup_percent"] = faster(*whole)
    for name in ("iso-storage", "mallacc", "speedmalloc"):
        if native and runs.get(name):
            flat[f"{name.replace('-', '_')}_speedup_percent"] = faster(native, runs[name])
    flat |= experiments(runs) | layouts(runs) | side_by_side(runs)
    for name, run in runs.items():
        if name not in RUNS["configurations"]:
            continue
        flat[f"{name}.cycles"] = run["cycles"]
        flat[f"{name}.instructions"] = run["instructions"]
        flat[f"{name}.traffic_bytes"] = run["dram.traffic_bytes"]
        flat[f"{name}.user_pages"], flat[f"{name}.kernel_pages"] = held(run)
    return flat


def of_plan(runs: dict, plan: str) -> dict:
    """A plan's runs, by the names of the same runs with today's inputs; the first call's as `first-...`."""
    prefix = f"{RUNS['plans'][plan]['inputs']}-"
    return {name.removeprefix(prefix): run for name, run in runs.items() if name.startswith(prefix)}


def planned(runs: dict, its: dict) -> dict:
    """Results of a plan's runs: of the whole process, and below `first.` of the first call."""
    whole = {name: run for name, run in runs.items() if not name.startswith("first-")}
    first = {name.removeprefix("first-"): run for name, run in runs.items() if name.startswith("first-")}
    flat = program(whole, is_whole=not its.get("steady"))
    return flat | {f"first.{key}": value for key, value in program(first).items()}


def gathered(folder: Path, raw: Path, plan: str | None = None) -> dict:
    flat = {}
    raw.mkdir(exist_ok=True)
    for name, its in RUNS["programs"].items():
        runs = {path.stem: json.loads(path.read_text()) for path in sorted((folder / name).glob("*.json"))}
        inputs = tuple(f"{one}-" for one in RUNS["inputs"])
        runs = of_plan(runs, plan) if plan else {k: v for k, v in runs.items() if not k.startswith(inputs)}
        if runs:
            (raw / f"{name}.json.xz").write_bytes(lzma.compress(json.dumps(runs, indent=1).encode()))
        failed = {f"{name}.{one}.failure": run["failure"] for one, run in runs.items() if "failure" in run}
        good = {one: run for one, run in runs.items() if "failure" not in run}
        found = planned(good, its) if plan else program(good)
        flat |= {f"{name}.{key}": value for key, value in found.items()} | failed
    if plan:
        return flat | averages(flat)
    turns = {
        path.name: {one.stem: json.loads(one.read_text()) for one in sorted(path.glob("*.json"))}
        for path in sorted(folder.glob("together-*"))
    }
    if turns:
        (raw / "together.json.xz").write_bytes(lzma.compress(json.dumps(turns, indent=1).encode()))
    cost = folder / "cost.json"
    return flat | averages(flat) | together(turns) | (json.loads(cost.read_text()) if cost.exists() else {})


def averages(flat: dict) -> dict:
    """Mean, least and most over the functions, and over each group."""
    named = dict.fromkeys(one["group"] for one in RUNS["programs"].values() if one["group"] != "micro")
    groups = {group: [group] for group in named}
    found = {}
    for group, members in {"functions": FUNCTIONS, **groups}.items():
        programs = [name for name, one in RUNS["programs"].items() if one["group"] in members]
        keys = {
            key.removeprefix(f"{name}.")
            for name in programs
            for key in flat
            if key.startswith(f"{name}.") and key.endswith("_percent")
        }
        for key in sorted(keys):
            values = [flat[f"{name}.{key}"] for name in programs if f"{name}.{key}" in flat]
            prefix = f"average.{group}.{key.removesuffix('_percent')}"
            found |= {f"{prefix}_percent": mean(values), f"{prefix}.programs": len(values)}
            found |= {f"{prefix}.least_percent": min(values), f"{prefix}.most_percent": max(values)}
            found[f"{prefix}.median_percent"] = median(values)
        # Percentages of a program with a dozen pages mean little: the same of all pages together.
        for one, kinds in {"user_": ["user"], "kernel_": ["kernel"], "": ["user", "kernel"]}.items():
            sums = [
                sum(flat.get(f"{name}.{side}.{kind}_pages", 0) for name in programs for kind in kinds)
                for side in ("native", "memento")
            ]
            found[f"average.{group}.{one}pages_saved.total_percent"] = saved(*sums)
        # Shares of the mean gain, as in the paper: shares of a small gain mean little.
        if whole := found.get(f"average.{group}.gain.all_percent"):
            for one in PARTS:
                share = part(found[f"average.{group}.gain.{one}_percent"], whole)
                found[f"average.{group}.gain_share.{one}_percent"] = share
    return found


def rows(flat: dict) -> list[list[str]]:
    lines = [["percent", "paper", "ours", "least", "most", "programs", "where"]]
    wanted = [("functions", key, *paper) for key, paper in AVERAGES.items()]
    wanted += [(group, key, *paper) for (group, key), paper in GROUPS.items()]
    for group, key, paper, where in wanted:
        prefix = f"average.{group}.{key.removesuffix('_percent')}"
        numbers = [flat.get(f"{prefix}{end}") for end in ("_percent", ".least_percent", ".most_percent")]
        name = key.removesuffix("_percent") + ("" if group == "functions" else f", {group}")
        many = str(flat.get(f"{prefix}.programs", 0))
        lines.append([name, f"{paper:g}", *(figure(number, 2) for number in numbers), many, where])
    return lines


def experiment_rows(flat: dict) -> list[list[str]]:
    """Means over the programs that have the experiment: what Memento gains with one thing changed."""
    kinds = ("speedup", "traffic_saved", "pages_saved")
    lines = [["experiment", "programs", "cycles", "traffic", "pages", *kinds, "what is changed"]]
    for name, experiment in RUNS["experiments"].items():
        having = [one for one in RUNS["programs"] if f"{one}.experiment.{name}.speedup_percent" in flat]
        if not having:
            continue
        of = lambda key, having=having: mean(flat[f"{one}.experiment.{key}_percent"] for one in having)  # noqa: E731
        more = [f"{of(f'{name}.more_{what}'):+.2f}" for what in ("cycles", "traffic", "pages")]
        gains = [f"{of(f'{name}.plain.{kind}'):.2f} -> {of(f'{name}.{kind}'):.2f}" for kind in kinds]
        lines.append([name, str(len(having)), *more, *gains, experiment["says"]])
    return lines


def layout_rows(flat: dict) -> list[list[str]]:
    lines = [
        ["ten layouts", "speed-up", "mean", "deviation", "least", "most", "traffic saved, mean", "deviation"]
    ]
    for name in RUNS["programs"]:
        if f"{name}.layouts" not in flat:
            continue
        keys = [
            f"layouts.speedup.{end}"
            for end in ("mean_percent", "deviation_points", "least_percent", "most_percent")
        ]
        keys += ["layouts.traffic_saved.mean_percent", "layouts.traffic_saved.deviation_points"]
        plain = figure(flat.get(f"{name}.speedup_percent"), 2)
        lines.append([name, plain, *(figure(flat[f"{name}.{key}"], 2) for key in keys)])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--plan", choices=list(RUNS["plans"]), help="the runs of a plan alone")
    options = parser.parse_args()
    output = options.output
    flat = write(output, gathered(options.folder, output.with_suffix(""), options.plan))
    table(rows(flat))
    table(experiment_rows(flat))
    table(layout_rows(flat))
    for key, reason in flat.items():
        if key.endswith(".failure"):
            print(f"FAILED {key.removesuffix('.failure')}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
