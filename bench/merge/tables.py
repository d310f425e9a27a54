"""The results as tables: one for each part, then the goals reached and missed."""

from bench.merge import models, torch_workers
from bench.merge.goals import reduction_percent
from bench.merge.regions import METHODS, PATTERNS, PHASES
from bench.outcome import figure, grid, table

STEPS = {
    "hash": "calculate hash",
    "search": "search in the index",
    "known": "search in the reversed table",
    "insert": "add to the store",
    "map": "map the store's pages",
    "freeze": "hold writers off",
    "compare": "compare byte by byte",
    "remap": "merge pages",
    "other": "other",
}


def print_all(flat: dict) -> None:
    print_regions(flat)
    print_reads(flat)
    print_servers(flat)
    print_torch(flat)
    print_sizes(flat)
    print_where(flat)
    print_kernel(flat)
    print_sharing(flat)
    print_memory(flat)
    print_cold(flat)


def print_regions(flat: dict) -> None:
    grid(
        "Regions: 16 x 256 MiB, 5% of each its own (alternating: half of it). --quick: 4 x 32 MiB",
        flat,
        {f"{pattern} {method}": f"regions.{pattern}.{method}" for pattern in PATTERNS for method in METHODS},
        " | ideal MiB | memory MiB | over ideal % | time s | CPU s | clients | daemon | ksmd | merged % | "
        "first MiB/s | merging MiB/s | again MiB/s | mappings",
        "ideal_mib memory_mib over_ideal_percent:1 wall_s:2 cpu_s:2 client_cpu_s:2 daemon_cpu_s:2 "
        "ksmd_cpu_s:2 merged_percent first_call_mib_per_s merging_call_mib_per_s again_mib_per_s "
        "mappings_of_last",
        0,
    )


def print_reads(flat: dict) -> None:
    if "reads.mib" not in flat:
        return
    print(
        f"\nReading a table of {flat['reads.mib']} MiB, in turn: medians, and times as long on merged memory"
    )
    rows = [["", "plain ms", "the first's ms", "merged ms", "merged, x", "(min-max)"]]
    for way in ("rows", "random", "gemv"):
        row = [way, *(figure(flat[f"reads.{way}.{name}_ms"]) for name in ("plain", "first", "merged"))]
        low, high = (flat[f"reads.{way}.merged_ratio_{end}"] for end in ("min", "max"))
        rows.append([*row, figure(flat[f"reads.{way}.merged_ratio"], 2), f"{low:.2f}-{high:.2f}"])
    table(rows)
    huge = (figure(flat[f"reads.{name}.huge_mib"], 0) for name in ("plain", "first", "merged"))
    print(f"  of it on huge pages, MiB: {', '.join(huge)}")


def print_servers(flat: dict) -> None:
    programs = {"servers": "gunicorn", "search": "uvicorn", "tables": "gunicorn with tables"}
    for part, program in programs.items():
        if f"{part}.workers" not in flat:
            continue
        print(f"\n{program}, {flat[f'{part}.workers']} workers: PSS of all and the store; x: beside plain")
        rows = [
            [
                "",
                "MiB",
                "x",
                "P50 ms",
                "P99 ms",
                "x",
                "(parts)",
                "start s",
                "x",
                "(min-max)",
                "slowest of the first",
            ]
        ]
        for method in ("plain", "pack", "process"):
            value = {key: flat[f"{part}.{method}.{key}"] for key in SERVER_KEYS}
            row = [figure(value[key], 2) for key in SERVER_KEYS]
            for at, key in ((6, "p99_part"), (9, "start_ratio")):
                low, high = (flat[f"{part}.{method}.{key}_{end}"] for end in ("min", "max"))
                row.insert(at - 1, f"{low:.2f}-{high:.2f}")
            rows.append([method, *row])
        table(rows)


SERVER_KEYS = (
    "system_mib", "system_ratio", "p50_ms", "p99_ms", "p99_ratio", "start_s", "start_ratio", "first_max_ms"
)  # fmt: skip


def print_torch(flat: dict) -> None:
    for model, about in torch_workers.MODELS.items():
        count = flat.get(f"torch.{model}.workers")
        rows = {name: f"torch.{model}.{method}" for method, name in torch_workers.ROWS.items()}
        title = f"{model}, {count} workers ({about}): MiB of all and the store; x: beside plain of the round"
        grid(
            title,
            flat,
            rows,
            " | MiB | (min | max) | x | (min | max) | P50 ms | x | (min | max) | share ms",
            "system_mib:0 system_mib_min:0 system_mib_max:0 system_ratio system_ratio_min system_ratio_max "
            "p50_ms:1 p50_ratio p50_ratio_min p50_ratio_max share_ms:0",
            2,
        )
        grid(
            "Of it pages of files, which the page cache has once for all; without them; in the store; "
            "and private, by kind",
            flat,
            rows,
            " | files | without | x | store | anonymous | heap | libraries | written since | stacks",
            "files_mib own_mib own_ratio:2 store_mib private.anonymous_mib private.heap_mib "
            "private.libraries_mib private.written_mib private.stack_mib",
            0,
        )


def print_sizes(flat: dict) -> None:
    sizes = sorted({int(key.split(".")[1]) for key in flat if key.startswith("sizes.")})
    if not sizes:
        return
    print("\nTime by size (UPM Fig. 7): medians, and GB/s")
    rows = [["MiB", "first ms", "(min-max)", "GB/s", "second ms", "(min-max)", "GB/s"]]
    for mib in sizes:
        row = [str(mib)]
        for call in ("first", "second"):
            took = flat[f"sizes.{mib}.{call}_ms"]
            low, high = (flat[f"sizes.{mib}.{call}_{end}_ms"] for end in ("min", "max"))
            row += [figure(took), f"{low:.1f}-{high:.1f}", figure(mib * (1 << 20) / 1e6 / took, 2)]
        rows.append(row)
    table(rows)


def where_the_time_goes(flat: dict) -> dict[str, str]:
    """Label to key prefix of every measured breakdown."""
    found = {}
    for label, prefix in (
        ("region, first", "regions.contiguous.engine.first"),
        ("region, merging", "regions.contiguous.engine.merging"),
        ("ResNet-50, first", "cold.resnet50.pack.first"),
        ("ResNet-50, merging", "cold.resnet50.pack.later"),
    ):
        if f"{prefix}.hash_percent" in flat:
            found[label] = prefix
    return found


def share(flat: dict, prefix: str, step: str) -> float:
    if step == "other":
        return max(0.0, 100 - sum(flat[f"{prefix}.{phase}_percent"] for phase in PHASES))
    return flat[f"{prefix}.{step}_percent"]


def print_where(flat: dict) -> None:
    columns = where_the_time_goes(flat)
    if not columns:
        return
    print("\nWhere the time of advise goes, in % of wall time (UPM Table I)")
    rows = [["", *columns]]
    for step, label in STEPS.items():
        rows.append([label, *(figure(share(flat, prefix, step)) for prefix in columns.values())])
    table(rows)


def print_kernel(flat: dict) -> None:
    if "kernel.upm.first_ms" not in flat:
        return
    size, count = flat["kernel.size_mib"], flat["kernel.processes"]
    print(
        f"\nIn the kernel, {count} processes of {size} MiB in a VM: its times compare with one another only"
    )
    rows = [["", "first ms", "merging ms", "again ms", "all ms", "saved MiB"]]
    keys = ("upm.first_ms", "upm.merging_ms", "upm.again_ms", "upm.all_ms", "upm.saved_mib")
    rows.append(["madvise(MADV_UPM)", *(figure(flat.get(f"kernel.{key}")) for key in keys)])
    if "kernel.ksm.all_ms" in flat:
        ksm = (figure(flat["kernel.ksm.all_ms"]), figure(flat["kernel.ksm.saved_mib"]))
        rows.append(["ksmd, fastest", "-", "-", "-", *ksm])
    table(rows)
    steps = [key.split(".")[3] for key in flat if key.startswith("kernel.upm.first.")]
    steps = [step.removesuffix("_percent") for step in steps if step.endswith("_percent")]
    if steps:
        print("  Where its time goes, in %")
        rows = [["", *steps]]
        for which in ("first", "merging"):
            rows.append([which, *(figure(flat.get(f"kernel.upm.{which}.{step}_percent")) for step in steps)])
        table(rows)


def print_sharing(flat: dict) -> None:
    both = {"aslr": "", "no_aslr": ", no ASLR"}
    names = [*models.NETWORKS, *models.FUNCTIONS]
    grid(
        "What an instance could share, in % of its memory (UPM Fig. 1). In brackets: parts of it",
        flat,
        {f"{one}{note}": f"sharing.{one}.{aslr}" for one in names for aslr, note in both.items()},
        " | of all MiB | shared | identical anonymous | identical file | volatile | (zero pages) | "
        "(half alike) | (3/4 alike)",
        "all_mib shared_percent identical_anonymous_percent identical_file_percent volatile_percent "
        "identical_zero_percent half_identical_percent three_quarters_identical_percent",
    )


def methods_of(network: str) -> list[str]:
    return [*models.METHODS[network], "ksm_default", "ksm_best"]


def print_memory(flat: dict) -> None:
    for network in models.NETWORKS:
        counts = [n for n in models.COUNTS if f"models.{network}.nothing.{n}.each_mib" in flat]
        if not counts:
            continue
        last = counts[-1]
        print(
            f"\n{network}: MiB an instance (PSS and its part of the untouched store), by instances (Fig. 5);"
        )
        print(f"  then, at {last}: private, RSS, anonymous and store, and the system's memory (Fig. 6)")
        rows = [
            [
                "",
                *(str(n) for n in counts),
                "less %",
                "private",
                "RSS",
                "anon+store",
                "system",
                "system less %",
            ]
        ]
        for method in methods_of(network):
            prefix = f"models.{network}.{method}"
            if f"{prefix}.{last}.each_mib" not in flat:
                continue
            row = [method, *(figure(flat.get(f"{prefix}.{n}.each_mib"), 0) for n in counts)]
            row.append(figure(reduction_percent(flat, network, method, f"{last}.each_mib")))
            for key in ("private_mib", "rss_mib", "anonymous_and_store_mib", "system_mib"):
                row.append(figure(flat[f"{prefix}.{last}.{key}"], 0))
            row.append(figure(reduction_percent(flat, network, method, f"{last}.system_mib")))
            rows.append(row)
        table(rows)


def print_cold(flat: dict) -> None:
    steps = ("total", "cpu", "import", "load", "pack", "advise", "first_answer")
    rows = [["", *steps, "longer %", "CPU %", "first: total", "advise", "longer %", "CPU %"]]
    for network in models.NETWORKS:
        for method in models.METHODS[network]:
            prefix = f"cold.{network}.{method}"
            if f"{prefix}.later.total_ms" not in flat:
                continue
            row = [f"{network} {method}"]
            row += [figure(flat.get(f"{prefix}.later.{step}_ms"), 0) for step in steps]
            row += [figure(flat.get(f"{prefix}.later.{one}_longer_percent")) for one in ("total", "cpu")]
            row += [figure(flat.get(f"{prefix}.first.{step}_ms"), 0) for step in ("total", "advise")]
            row += [figure(flat.get(f"{prefix}.first.{one}_longer_percent")) for one in ("total", "cpu")]
            rows.append(row)
    if len(rows) > 1:
        print("\nCold start in ms: medians of instances with others there, and of first ones (UPM Fig. 8);")
        print("  longer: than a plain instance started in the same round, median of the rounds")
        table(rows)
