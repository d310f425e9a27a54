"""The command bench/heap/servers: third-party threaded servers on every allocator, in turn."""

import argparse
import sys
from statistics import median

from bench import command
from bench.heap import allocators
from bench.heap.machine import thp_setting
from bench.heap.measure import Numbers
from bench.heap.third_party import clickhouse, life, mariadb, recursor
from bench.outcome import figure, medians, table, write

SERVERS = {
    "mariadb": ("MariaDB, a thread a connection, under sysbench", mariadb.run),
    "recursor": ("PowerDNS Recursor, a flood of names and a flush, under dnsperf", recursor.run),
    "clickhouse": ("ClickHouse, eight large aggregations at once", clickhouse.run),
}
# What is compared: key, heading, divisor, unit's digits; lower is better in all of them.
COLUMNS = {
    "cpu_ms": ("CPU s", 1000, 1),
    "peak_rss_kib": ("peak MiB", 1024, 0),
    "rss_kib": ("at end MiB", 1024, 0),
    "peak_ranges_kib": ("peak ranges", 1024, 0),
    "ranges_kib": ("ranges at end", 1024, 0),
}

EPILOG = f"""
Each server is driven through load, peak and light traffic, a number of requests each, and then left alone for
{life.QUIET_S} s. 'at end' is its RSS then, 'ranges' the 2 MiB ranges of which any page is resident (without
files and stacks; the peak as sampled), 'live' what its allocator says is live (mallinfo2, jemalloc's mallctl,
tcmalloc's property; '-' where it has none). CPU is the server's own, the quiet included.

examples
  bench/heap/servers                                      everything (an hour or so)
  bench/heap/servers --quick --only mariadb --allocators glibc,jemalloc:decay,mayfly
  bench/heap/servers --only recursor --rounds 5 --allocators jemalloc:decay,mayfly
  MAYFLY_HEAP_LIBRARY=/tmp/one.so bench/heap/servers --quick --only clickhouse --allocators mayfly
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "heap/servers",
        "Third-party threaded C++ servers on every allocator: memory kept after a peak, CPU.",
        "server",
        {name: about for name, (about, _) in SERVERS.items()},
        EPILOG,
        "small loads, one round: 20 s or so a server and allocator",
        "servers.json",
        rounds=0,
    )
    parser.add_argument("--allocators", metavar="NAME,...", help="these allocators and no others")
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", SERVERS, all_of=True)
    return parsed


def measure(options: argparse.Namespace, chosen: list[allocators.Allocator]) -> tuple[dict, dict]:
    samples: dict[tuple[str, str], list[Numbers]] = {}
    failures: dict[tuple[str, str], str] = {}
    rounds = options.rounds or (1 if options.quick else 3)
    for server in options.only:
        for number in range(rounds):
            for one in chosen:
                if (server, one.name) in failures:
                    continue
                what = f"{server} {number + 1}/{rounds} {one.name}"
                with command.attempt(what, failures, (server, one.name)) as said:
                    numbers = SERVERS[server][1](one, options.quick)
                    samples.setdefault((server, one.name), []).append(numbers)
                    said.append(f"{numbers['rss_kib'] / 1024:.0f} MiB at the end")
    return samples, failures


def middle(runs: list[Numbers], metric: str) -> float | None:
    values = [run[metric] for run in runs if metric in run]
    return median(values) if values else None


def best_peer(samples: dict, server: str, metric: str) -> float | None:
    values = [
        middle(runs, metric)
        for (name, allocator), runs in samples.items()
        if name == server and not allocator.startswith("mayfly")
    ]
    return min((value for value in values if value), default=None)


def print_server(samples: dict, server: str) -> None:
    print(f"\n{server}: {SERVERS[server][0]}")
    head = ["", *(part for label, _, _ in COLUMNS.values() for part in (label, "(min-max)", "to best peer"))]
    rows = [[*head, "PSS MiB", "huge MiB", "live MiB", "kept/live"]]
    for (name, allocator), runs in samples.items():
        if name != server:
            continue
        row = [allocator]
        for metric, (_, divisor, digits) in COLUMNS.items():
            values = [run[metric] / divisor for run in runs]
            best = best_peer(samples, server, metric)
            row.append(figure(median(values), digits))
            row.append(f"{min(values):.{digits}f}-{max(values):.{digits}f}" if len(values) > 1 else "")
            row.append(f"{median(values) * divisor / best:.2f}x" if best else "-")
        for metric in ("pss_kib", "anon_huge_kib", "live_kib"):
            value = middle(runs, metric)
            row.append(figure(value and value / 1024))
        live, kept = middle(runs, "live_kib"), middle(runs, "rss_kib")
        row.append(f"{kept / live:.2f}x" if live else "-")
        rows.append(row)
    table(rows)


def flat(samples: dict, failures: dict, machine: dict) -> dict:
    """SERVER.ALLOCATOR.METRIC, medians; with _min and _max where there are several rounds."""
    found = dict(machine)
    for (server, allocator), runs in samples.items():
        prefix = f"{server}.{allocator.replace(':', '_').replace('-', '_')}."
        found |= {prefix + metric: value for metric, value in medians(runs).items()}
        for metric in COLUMNS:
            value, best = middle(runs, metric), best_peer(samples, server, metric)
            if value and best:
                found[prefix + metric.rpartition("_")[0] + "_ratio"] = round(value / best, 3)
    for (server, allocator), why in failures.items():
        found[f"failed.{server}.{allocator}"] = why
    return found


def run(options: argparse.Namespace) -> int:
    default = allocators.SERVERS_QUICK if options.quick else allocators.SERVERS
    samples, failures = measure(options, allocators.find_all(options.allocators or default))
    machine = command.machine(options.quick, transparent_huge_pages=thp_setting())
    found = write(options.output, flat(samples, failures, machine))

    def print_tables() -> None:
        for server in dict.fromkeys(name for name, _ in samples):
            print_server(samples, server)

    return command.report(options, found, print_tables, failures=failures)


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: run(options)))
