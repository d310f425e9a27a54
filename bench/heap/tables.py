"""The results as tables: one for each workload, then the means, then the goals that are met and missed."""

from bench.heap.results import Results
from bench.heap.workload_list import PAIRS, WORKLOADS
from bench.outcome import figure, table

MIB = 1 << 20


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def spread(values: list[float], digits: int = 0) -> str:
    return f"{min(values):.{digits}f}-{max(values):.{digits}f}" if len(values) > 1 else ""


def print_all(results: Results) -> None:
    for workload in results.workloads():
        about = WORKLOADS[workload]
        print(f"\n{workload}: {about.about}")
        if workload in PAIRS:
            print_pairs(results, workload)
        else:
            print_workload(results, workload)
        if workload == "swing":
            print_swing(results)
        if workload == "small":
            print_small(results)
        if workload == "callers":
            print_callers(results)
        if workload == "redis":
            print_redis(results)
    print_means(results)


def print_workload(results: Results, workload: str) -> None:
    head = ["", "time ms", "(min-max)", "ratio", "peak RSS MiB", "ratio", "RSS at end MiB", "ratio"]
    rows = [[*head, "2 MiB ranges", "ratio", "in huge pages MiB", "translations", "ratio"]]
    for name in results.names(workload):
        row = [name, figure(results.median(workload, name, "time_ms"), 0)]
        row += [
            spread(results.of(workload, name, "time_ms")),
            times(results.ratio(workload, name, "time_ms")),
        ]
        for metric in ("peak_rss_kib", "rss_kib", "ranges_kib"):
            kib = results.median(workload, name, metric)
            row += [figure(kib and kib / 1024), times(results.ratio(workload, name, metric))]
        huge = results.median(workload, name, "anon_huge_kib")
        row += [figure(None if huge is None else huge / 1024, 0)]
        row += [figure(results.median(workload, name, "translations"), 0)]
        row += [times(results.ratio(workload, name, "translations"))]
        rows.append(row)
    table(rows)


def print_pairs(results: Results, workload: str) -> None:
    names = results.names(workload)
    metrics = [key for key in results.samples[workload, names[0]][0] if key.endswith("_ns")]
    print("  ns per pair (median of rounds), and how many times the fastest")
    rows = [["path", *names]]
    for metric in metrics:
        row = [metric.removesuffix("_ns")]
        for name in names:
            value, ratio = results.median(workload, name, metric), results.ratio(workload, name, metric)
            row.append(f"{figure(value)} {times(ratio)}")
        rows.append(row)
    table(rows)


SWING_COLUMNS = {
    "at once": "at_once.rss_kib",
    "settled": "rss_kib",
    "2 MiB ranges": "ranges_kib",
    "on huge pages": "anon_huge_kib",
    "released": "released.rss_kib",
    "its ranges": "released.ranges_kib",
    "live 4 KiB pages": "live_4k_bytes",
    "live 2 MiB pages": "live_2m_bytes",
}


def print_swing(results: Results) -> None:
    print("  MiB at the end: RSS at once and after a quiet second, 2 MiB ranges then, on huge pages, after")
    print(
        "  asking for a release; and what the living objects' pages alone would take. LLAMA Fig. 12b, 2 MiB"
    )
    print("  pages: LLAMA 22, Mesh 558")
    rows = [["", "ns/pair", *SWING_COLUMNS]]
    for name in results.names("swing"):
        row = [name, figure(results.median("swing", name, "pair_ns"))]
        for metric in SWING_COLUMNS.values():
            value = results.median("swing", name, metric)
            row.append(figure(value and value / (MIB if metric.endswith("bytes") else 1024)))
        rows.append(row)
    table(rows)


def print_callers(results: Results) -> None:
    print(
        "  MiB above the program's own, after the peak and at the end, beside live objects: RSS, then ranges"
    )
    rows = [["", "live", "at once", "at the end", "of live", "ranges at once", "at the end", "of live"]]
    for name in results.names("callers"):
        live = results.median("callers", name, "live_bytes") or 0
        row = [name, figure(live / MIB)]
        for unit in ("rss_kib", "ranges_kib"):
            own, at_once, end = (
                results.median("callers", name, moment + unit) or 0 for moment in ("own.", "at_once.", "")
            )
            left = [(kib - own) / 1024 for kib in (at_once, end)]
            row += [*map(figure, left), times(left[1] * MIB / live)]
        rows.append(row)
    table(rows)


SMALL_COLUMNS = {
    "true, start ms": "true.start_ms",
    "python, start ms": "python.start_ms",
    "sleep, private KiB": "sleep.private_kib",
    "shell, private KiB": "shell.private_kib",
    "python, private KiB": "python.private_kib",
    "sleep, ranges KiB": "sleep.ranges_kib",
    "python, ranges KiB": "python.ranges_kib",
}


def print_small(results: Results) -> None:
    print("  Processor time of a start, and what a process has for itself while it waits; beside glibc's")
    rows = [["", *(part for label in SMALL_COLUMNS for part in (label, "to glibc's"))]]
    for name in results.names("small"):
        row = [name]
        for metric in SMALL_COLUMNS.values():
            value, theirs = (results.median("small", one, metric) for one in (name, "glibc"))
            row += [figure(value, 2 if metric.endswith("_ms") else 0), times(theirs and value / theirs)]
        rows.append(row)
    table(rows)


def print_redis(results: Results) -> None:
    live = results.redis_live_bytes() or 0
    full = results.redis_live_bytes("full.") or 0
    print(f"  Live data: {full / MIB:.0f} MiB when full, {live / MIB:.0f} MiB at the end.")
    print("  MiB as RSS, then in 2 MiB ranges. Fragmentation is that by live; 'less' is LLAMA Table 3's")
    print("  reduction beside tcmalloc:huge, of ranges on both sides, then of RSS on both.")
    head = ["", "SET/s", "LRANGE/s"]
    for unit in ("", " ranges"):
        head += [f"full{unit}", f"most deleted{unit}", f"at end{unit}", "fragmentation"]
    rows = [[*head, "on huge pages", "less, ranges", "less, RSS"]]
    for name in results.names("redis"):
        row = [name]
        row += [figure(results.median("redis", name, key), 0) for key in ("set_per_s", "lrange_100_per_s")]
        of = lambda metric, name=name: (results.median("redis", name, metric) or 0) / 1024  # noqa: E731
        for unit in ("rss_kib", "ranges_kib"):
            row += [figure(of(moment + unit)) for moment in ("full.", "deleted.", "")]
            row.append(times(live and of(unit) * MIB / live))
        row.append(figure(of("anon_huge_kib")))
        for unit in ("ranges_kib", "rss_kib"):
            part = results.redis_reduction(name, unit=unit)
            row.append("-" if part is None else f"{part:.0%}")
        rows.append(row)
    table(rows)


def print_means(results: Results) -> None:
    rows = [["", "time", "peak RSS"]]
    for one in results.allocators:
        means = [results.geometric_mean(one.name, metric) for metric in ("time_ms", "peak_rss_kib")]
        if any(means) and "oracle" not in one.name:
            rows.append([one.name, *map(times, means)])
    if len(rows) > 1:
        counted = results.workloads()
        print(f"\nGeometric means of the ratios over {len(counted)} workloads: {', '.join(counted)}")
        print("  (paths has no part in the memory: it keeps next to nothing)")
        table(rows)
