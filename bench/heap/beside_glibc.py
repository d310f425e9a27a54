"""The command bench/heap/cpu: the cost of an allocator to third-party programs, in processor time and memory.

These programs allocate no more than they need: Node.js and a JVM have their own heaps, PostgreSQL starts a
process for each connection. Their cost, beside glibc, is what an operator pays who preloads an allocator
everywhere.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench import command
from bench.compiled import BUILD
from bench.heap import allocators
from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.measure import run as run_program
from bench.heap.redis import server_command
from bench.heap.server import Server, scratch_folder, serving, tool
from bench.outcome import BenchError, Shown, at_most, figure, say, table, write
from bench.processes import ask

WORKLOADS = Path(__file__).parent / "workloads"
ALLOCATORS = "glibc,jemalloc531,mimalloc3,mayfly"
WANTED = 1.02
POSTGRESQL = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
# The commands that redis-benchmark chooses by default.
COMMANDS = "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset"


def node(allocator: Allocator, is_quick: bool) -> Numbers:
    script = WORKLOADS / "documents.js"
    _, cost = run_program(allocator, [tool("node"), script, 20_000 if is_quick else 250_000])
    return cost


def jvm(allocator: Allocator, is_quick: bool) -> Numbers:
    source = java_source(60 if is_quick else 400)
    with scratch_folder() as folder:
        _, cost = run_program(allocator, [tool("javac"), "-nowarn", "-d", folder, source])
    return cost


def java_source(classes: int) -> Path:
    """A file of this many classes with collections, lambdas and switches: work for a compiler."""
    one = """class C$ implements Comparable<C$> {
  final java.util.Map<String, java.util.List<Integer>> table = new java.util.TreeMap<>();
  int total = $;
  public int compareTo(C$ other) { return Integer.compare(total, other.total); }
  int add(String name, int... values) {
    var list = table.computeIfAbsent(name, key -> new java.util.ArrayList<>());
    for (int value : values) list.add(value * $);
    return list.stream().map(value -> value + total).filter(value -> value % 3 != 0).reduce(0, Integer::sum);
  }
  String of(Object object) {
    if (object instanceof String text && text.length() > $) return text.substring($);
    return switch (total % 4) { case 0 -> "none"; case 1 -> table.toString(); default -> object + "-$"; };
  }
}"""
    path = BUILD / f"Classes{classes}.java"
    BUILD.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(one.replace("$", str(n)) for n in range(1, classes + 1)))
    return path


def redis(allocator: Allocator, is_quick: bool) -> Numbers:
    with scratch_folder() as folder, serving(allocator, server_command(), folder) as server:
        requests = 10_000 if is_quick else 100_000
        load = [tool("redis-benchmark"), "-q", "-s", server.socket_path, "-t", COMMANDS, "-d", "100"]
        return under(server, [*load, "-P", "8", "-r", "100000", "-n", str(requests)])


def postgresql(allocator: Allocator, is_quick: bool) -> Numbers:
    return database(allocator, ["-S", "-M", "prepared", "-c", "8", "-t", "1000" if is_quick else "10000"])


def postgresql_connections(allocator: Allocator, is_quick: bool) -> Numbers:
    return database(allocator, ["-S", "-C", "-c", "8", "-t", "50" if is_quick else "500"])


def database(allocator: Allocator, load: list[str]) -> Numbers:
    """A new PostgreSQL database under pgbench. The server refuses to run as root."""
    binaries = POSTGRESQL[-1]
    with scratch_folder() as folder:
        as_user = []
        if allocator.base != "glibc":  # the user may have no access to the library's folder
            library = Path(shutil.copy(allocator.library, folder))
            allocator = dataclasses.replace(allocator, library=library)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            as_user = [tool("setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        ask(
            [*as_user, binaries / "initdb", "-A", "trust", "-N", "-U", "bench", "-D", f"{folder}/data"],
            "initdb",
        )
        started = [*as_user, str(binaries / "postgres"), "-D", f"{folder}/data", "-k", folder]
        started += ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off"]
        client = [tool("pgbench"), "-h", folder, "-U", "bench"]

        def answers(_: Server) -> bool:
            asked = [*client, "-n", "-t", "1", "-f", "/dev/stdin", "postgres"]
            return subprocess.run(asked, input="SELECT 1;", text=True, capture_output=True).returncode == 0

        with serving(allocator, started, folder, answers) as server:
            ask([*client, "-q", "-i", "-s", "2", "postgres"], "pgbench")
            return under(server, [*client, "-n", *load, "postgres"])


def under(server: Server, load: list) -> Numbers:
    """What the server costs under a load: its processes' time, those that have ended included."""
    before = cpu_of_all_ms(server.process.pid)
    ask(load, Path(load[0]).name)
    time.sleep(0.5)  # processes of the last connections end
    return {
        "cpu_ms": cpu_of_all_ms(server.process.pid) - before,
        "peak_rss_kib": server.peak_rss_kib(),
    }


def cpu_of_all_ms(pid: int) -> float:
    """Processor time of a process, of its children that have ended, and of those that live."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) * 1000 / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_of_all_ms(int(child)) for child in children)


PROGRAMS: dict[str, tuple[str, Callable[[Allocator, bool], Numbers]]] = {
    "node": ("Node.js: documents are parsed, indexed, rendered, compressed", node),
    "jvm": ("a JVM: javac on 400 classes", jvm),
    "redis": ("Redis: the commands of redis-benchmark", redis),
    "postgresql": ("PostgreSQL: prepared queries by eight connections", postgresql),
    "connections": ("PostgreSQL: a connection for each query, and so a process", postgresql_connections),
}

EPILOG = """
examples
  bench/heap/cpu                                    everything, eight minutes or so
  bench/heap/cpu --only node,jvm --allocators glibc,mayfly --rounds 9
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "heap/cpu",
        "Processor time and peak memory of third-party programs on allocators, beside glibc.",
        "program",
        {name: about for name, (about, _) in PROGRAMS.items()},
        EPILOG,
        "small loads: says whether it works",
        "heap-cpu.json",
        rounds=5,
    )
    parser.add_argument(
        "--allocators",
        metavar="NAME,...",
        default=ALLOCATORS,
        help="these and no others, glibc always (default: %(default)s)",
    )
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", PROGRAMS, all_of=True)
    if not POSTGRESQL:  # its package would start a server of its own
        say("PostgreSQL is not installed (apt install postgresql): left out")
        parsed.only = [name for name in parsed.only if name not in ("postgresql", "connections")]
    return parsed


def of(program: str, allocator: Allocator, is_quick: bool) -> Numbers:
    try:
        return PROGRAMS[program][1](allocator, is_quick)
    except BenchError as error:
        raise BenchError(f"{program} on {allocator.name}: {error}") from error


def measured(options: argparse.Namespace, chosen: list[Allocator]) -> dict[str, float]:
    """PROGRAM.ALLOCATOR.METRIC, medians and their range, and the ratio to glibc's in the same round."""
    found: dict[str, float] = {}
    for program in options.only:
        rounds: list[dict[str, Numbers]] = []
        for number in range(options.rounds):
            rounds.append({one.key: of(program, one, options.quick) for one in chosen})
            times = ", ".join(f"{key} {numbers['cpu_ms'] / 1000:.2f}" for key, numbers in rounds[-1].items())
            say(f"{program} {number + 1}/{options.rounds}: CPU s {times}")
        for one in chosen:
            for metric in ("cpu_ms", "peak_rss_kib"):
                values = [numbers[one.key][metric] for numbers in rounds]
                ratios = [numbers[one.key][metric] / numbers["glibc"][metric] for numbers in rounds]
                prefix = f"{program}.{one.key}.{metric.rpartition('_')[0]}"
                found[f"{program}.{one.key}.{metric}"] = median(values)
                found[f"{prefix}_ratio"] = round(median(ratios), 4)
                found[f"{prefix}_ratio_min"] = round(min(ratios), 4)
                found[f"{prefix}_ratio_max"] = round(max(ratios), 4)
    return found


def run(options: argparse.Namespace) -> int:
    chosen = allocators.find_all(f"glibc,{options.allocators}")
    found = measured(options, chosen)
    shown: list[Shown] = []
    for program in options.only if any(one.name == "mayfly" for one in chosen) else []:
        ratio = found[f"{program}.mayfly.cpu_ratio"]
        shown.append(at_most(f"{program}: processor time beside glibc's", WANTED, ratio, "x"))
    flat = write(options.output, command.machine(options.quick) | found, shown)
    return command.report(options, flat, lambda: print_tables(options.only, chosen, found), shown)


def print_tables(programs: list[str], chosen: list[Allocator], found: dict[str, float]) -> None:
    for metric, unit, divisor in (("cpu", "ms", 1000), ("peak_rss", "kib", 1024)):
        of_peak = "Peak RSS of the largest process, MiB (the kernel keeps no peak of 2 MiB ranges)"
        print(f"\n{'Processor time, s' if metric == 'cpu' else of_peak}")
        rows = [["", *(one.name for one in chosen)]]
        for program in programs:
            row = [program]
            for one in chosen:
                ratio = found[f"{program}.{one.key}.{metric}_ratio"]
                value = found[f"{program}.{one.key}.{metric}_{unit}"]
                row.append(f"{figure(value / divisor, 2)} ({ratio:.3f})")
            rows.append(row)
        table(rows)


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: run(options)))
