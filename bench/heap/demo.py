"""Redis under its real load, on tcmalloc and on Mayfly, both on huge pages: speed, memory, fragmentation.

Everything shown is measured in this run, and every value that Redis must hold at the end is compared.
"""

import argparse
import json
import os
import sys

from bench.heap import allocators, redis
from bench.heap.machine import thp_setting
from bench.heap.tables import figure, table
from bench.heap.terminal_plot import plot
from bench.outcome import RESULTS, BenchError

PEER, OURS = "tcmalloc", "mayfly"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/heap/demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 connections and less data: ten seconds")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    scale = redis.QUICK if options.quick else redis.DEMO
    # Without root the machine's setting cannot be changed: then tcmalloc has the pages that it has.
    may_set = os.geteuid() == 0 and thp_setting() != "absent"
    names = {PEER: f"{PEER}:huge" if may_set else PEER, OURS: OURS}
    if not may_set:
        print("demo: not root: tcmalloc runs with the system's huge-page setting", file=sys.stderr)
    print("Redis, 1000-byte values: fill, serve large answers, delete most, fill again, delete most again.")
    numbers, curves = {}, {}
    try:
        for name, variant in names.items():
            print(f"demo: redis-server on {name} ...", file=sys.stderr, flush=True)
            allocator = allocators.find(variant, {})
            numbers[name], samples, phases = redis.run(allocator, scale)
            curves[f"redis-server on {name}: resident memory"] = [(at, kib / 1024) for at, kib in samples]
    except BenchError as error:
        print(f"demo: redis-server on {name}: {error}", file=sys.stderr)
        return 1
    live = min(one["used_memory_bytes"] for one in numbers.values()) / (1 << 20)
    print()
    print(plot(curves))
    print_phases(phases)
    print()
    print_table(numbers, live)
    write(numbers, curves, live)
    return 0


def print_phases(phases: list[tuple[float, str]]) -> None:
    """When each part of the load began, for the last of the two runs."""
    print(f"{'':8}" + " · ".join(f"{at:.0f} s {name}" for at, name in phases))


def print_table(numbers: dict[str, dict[str, float]], live: float) -> None:
    rows = [["", *numbers, f"{OURS} / {PEER}"]]

    def row(label: str, digits: int, value) -> None:
        values = [value(one) for one in numbers.values()]
        ratio = f"{values[1] / values[0]:.2f}x" if values[0] else "-"
        rows.append([label, *(figure(one, digits) for one in values), ratio])

    row("SET per second", 0, lambda one: one["set_per_s"])
    if all("get_per_s" in one for one in numbers.values()):
        row("GET per second", 0, lambda one: one["get_per_s"])
    row("LRANGE of 100 KB per second", 0, lambda one: one["lrange_100_per_s"])
    row("peak resident MiB", 0, lambda one: one["peak_rss_kib"] / 1024)
    row("resident when most is deleted, MiB", 0, lambda one: one["deleted.rss_kib"] / 1024)
    row("resident at the end, MiB", 0, lambda one: one["rss_kib"] / 1024)
    row("  in 2 MiB ranges with a resident page, MiB", 0, lambda one: one["ranges_kib"] / 1024)
    row("  on huge pages, MiB", 0, lambda one: one["anon_huge_kib"] / 1024)
    row("fragmentation at the end (resident / live)", 2, lambda one: one["rss_kib"] / 1024 / live)
    row("  in 2 MiB ranges", 2, lambda one: one["ranges_kib"] / 1024 / live)
    row("translations a TLB needs at the end", 0, lambda one: one["small_pages"] + one["huge_pages"])
    table(rows)
    keys = numbers[OURS]["keys"]
    print(f"\n  Live data at the end: {live:.0f} MiB. All {keys:.0f} keys were read back and compared.")
    for unit, counted in (("rss_kib", "resident bytes"), ("ranges_kib", "2 MiB ranges")):
        theirs, ours = (one[unit] / 1024 for one in numbers.values())
        less = (theirs - ours) / (theirs - live)
        word = "less" if less >= 0 else "MORE"
        print(f"  In {counted} Mayfly has {abs(less):.0%} {word} fragmentation than tcmalloc.")


def write(numbers: dict[str, dict[str, float]], curves: dict, live: float) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    flat = {f"demo.{name}.{key}": value for name, one in numbers.items() for key, value in one.items()}
    flat["demo.live_mib"] = round(live, 1)
    (RESULTS / "demo.json").write_text(json.dumps(flat, indent=1) + "\n")
    written = [RESULTS / "demo.json"]
    try:
        from bench.heap.figures import draw_over_time
    except ImportError:
        print("demo: matplotlib is not there (make setup), so no SVG is drawn", file=sys.stderr)
    else:
        written.append(draw_over_time(curves, live, "demo"))
    print("  Written: " + ", ".join(str(path.relative_to(RESULTS.parents[1])) for path in written))


if __name__ == "__main__":
    sys.exit(main())
