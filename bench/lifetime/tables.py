"""The tables that the command prints: every variant of every workload, and Table 3 beside the paper's."""

from bench.lifetime.results import PAPER, UNITS, Results
from bench.lifetime.workloads import WORKLOADS
from bench.outcome import figure, table


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def print_all(results: Results) -> None:
    for workload in results.workloads():
        print_variants(results, workload)
    if results.workloads():
        print_table_3(results)


def print_variants(results: Results, workload: str) -> None:
    print(f"\n{WORKLOADS[workload].title}: {WORKLOADS[workload].about}")
    print("  MiB: resident pages, and the 2 MiB ranges that any of them lies in, as the paper counts")
    head = ["", "requests/s", "p50 ms", "p99 ms"]
    for moment in ("peak", "end"):
        head += [moment, "by live", f"{moment} ranges", "by live"]
    rows = [[*head, "on huge pages"]]
    for variant in results.variants(workload):
        of = lambda what, variant=variant: results.of(workload, variant, what)  # noqa: E731
        row = [variant, figure(of("requests_per_s"), 0), figure(of("p50_ms")), figure(of("p99_ms"))]
        for moment in ("peak", "end"):
            for unit in UNITS:
                row.append(figure(of(f"{moment}_{unit}_mib"), 0))
                row.append(figure(results.fragmentation(workload, variant, moment, unit), 2))
        rows.append([*row, figure(of("end_huge_mib"), 0)])
    table(rows)
    oracle = results.oracle.get(workload, {})
    if oracle:
        print(
            f"  right lifetimes, replayed: {figure(oracle.get('mayfly.2MiB.average_ratio'), 2)}x live on"
            f" average; {oracle['trace.allocations']:,} allocations"
        )


def weighted(accuracy: dict[str, float]) -> float | None:
    """Of bytes of a run that was not learned from, or, in results of before, of allocations held out."""
    held_out = accuracy.get("train.held_out.weighted_percent")
    return accuracy.get("train.other_run.bytes_percent", held_out)


def print_table_3(results: Results) -> None:
    """LLAMA Table 3; ours / the paper's. Memory is in the paper's unit on both sides, then in pages."""
    print(
        "\nTable 3, ours / the paper's: MiB / MB of 2 MiB ranges; 'counted': tcmalloc's as the paper counts"
    )
    head = ["", "weighted", "unweighted", "tcmalloc", "counted", "Mayfly", "live"]
    rows = [[*head, "less than tcmalloc", "than counted", "resident pages: less than tcmalloc"]]
    for workload in results.workloads():
        paper, ours = PAPER[workload], results.best(workload)
        accuracy = results.accuracy.get(workload, {})
        end = lambda variant, workload=workload: figure(results.of(workload, variant, "end_ranges_mib"), 0)  # noqa: E731
        rows.append(
            [
                f"{WORKLOADS[workload].title} ({ours})",
                f"{figure(weighted(accuracy), 0)} / {paper['weighted']}%",
                f"{figure(accuracy.get('train.held_out.unweighted_percent'), 0)} / {paper['unweighted']}%",
                end("tcmalloc"),
                f"{end('tcmalloc_returning')} / {paper['tcmalloc']}",
                f"{end(ours)} / {paper['llama']}",
                f"{figure(results.live_mib(workload, 'end'), 0)} / {paper['live']}",
                percent(results.reduction(workload, ours, "tcmalloc")),
                f"{percent(results.reduction(workload, ours, 'tcmalloc_returning'))} / {paper['reduction']}%",
                percent(results.reduction(workload, ours, "tcmalloc", "resident")),
            ]
        )
    table(rows)
