"""The command: measures containers with and without Mayfly, prints tables, writes bench/results/node.json."""

import contextlib
import os
import sys
from pathlib import Path

from bench import command
from bench.outcome import BenchError, at_most, figure, table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "node/tests"))

from containerd2 import Containerd, programs  # noqa: E402
from go_programs import Missing  # noqa: E402
from podman4 import CDI, Podman  # noqa: E402

import node  # noqa: E402
from bench.node import debian, gunicorn, redis, starts, third_party_servers  # noqa: E402

PARTS = {
    "gunicorn": "eight workers with a model of 128 MiB each, plainly and sharing: memory, latency",
    "podman": "how long 100 containers take to start by Podman, plainly and with heap and sharing by CDI",
    "containerd": "how long 100 pods take to start by containerd 2, plainly and with heap and sharing by NRI",
    "redis": "Redis, filled and emptied twice, on its own heap and on Mayfly's: memory after it",
    "third_party": "nginx, PostgreSQL, MariaDB, Node.js on glibc and musl, plainly and with both: memory",
}
KEY = "strangers"  # of third_party: results and --only keep the former name
EPILOG = """
Needs root, Podman, Go and Debian's packages. Times are of this run and this machine: compare ratios.

examples
  bench/node/run                          everything, about 15 minutes
  bench/node/run --quick --only redis     smaller, in a minute
"""


class Run(command.Run):
    def keep(self, prefix: str, numbers: dict) -> None:
        super().keep(prefix, numbers | {"load": os.getloadavg()[0]})

    def all(self) -> int:
        if os.geteuid() != 0:
            raise BenchError("needs root: containers and the agent do")
        return super().all()

    def gunicorn(self) -> None:
        requests, rounds = (200, 1) if self.options.quick else (600, 5)
        with by_cdi() as (podman, agent):
            self.measure("gunicorn", gunicorn.measure, podman, agent, requests, rounds)

    def redis(self) -> None:
        with by_cdi() as (podman, _):
            image = debian.image(podman, "redis", ["redis-server"])
            for variant in redis.VARIANTS:
                self.measure(f"redis.{variant}", redis.measure, podman, image, variant, self.options.quick)

    def third_party(self) -> None:
        with by_cdi() as (podman, _):
            for name in third_party_servers.servers():
                self.measure(f"{KEY}.{name}", third_party_servers.measure, podman, name)

    def podman(self) -> None:
        with by_cdi() as (podman, _), root_of_pages() as root:
            archive = podman.folder / "glibc.tar"
            node.run("tar", "-cf", archive, "-C", root, ".")
            podman("import", archive, "localhost/glibc")
            self.measure("starts.podman", starts.podman, podman, self.count())

    def containerd(self) -> None:
        try:
            built = programs()
        except Missing as why:
            raise BenchError(str(why)) from why
        with (
            root_of_pages() as root,
            node.scratch() as folder,
            Containerd(folder, built) as containerd,
            node.scratch() as own,
            node.Agent(own, nri=containerd.nri) as agent,
        ):
            containerd.load(node.oci_archive(root, "localhost/glibc:1", folder / "glibc.tar"))
            node.until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
            self.measure("starts.containerd", starts.containerd, containerd, self.count())

    def count(self) -> int:
        return 10 if self.options.quick else 100


@contextlib.contextmanager
def by_cdi():
    """Podman with storage of its own, and an agent that has written its devices."""
    if list(CDI.glob("mayfly.dev-*.json")):
        raise BenchError(f"an agent has its devices in {CDI}: stop it first (mayfly node --clean)")
    with node.scratch() as folder:
        podman = Podman(folder)
        try:
            with node.Agent(folder, "--domain", "web", cdi=CDI) as agent:
                yield podman, agent
        finally:
            debian.clear(podman)


@contextlib.contextmanager
def root_of_pages():
    """A root with the small program of node's tests."""
    with node.scratch() as folder:
        yield node.root_folder(folder / "root", node.compile_programs(folder / "programs"), "glibc")


def tables(flat: dict) -> None:
    if "gunicorn.plain.memory_mib" in flat:
        rows = [["Gunicorn, eight workers", "plain", "shared", "ratio"]]
        for name, what in (("memory, MiB", "memory_mib"), ("P50, ms", "p50_ms"), ("P99, ms", "p99_ms")):
            one, other = (flat[f"gunicorn.{kind}.{what}"] for kind in gunicorn.KINDS)
            rows.append([name, figure(one), figure(other), figure(other / one, 3)])
        table(rows)
        print(
            f"  {flat['gunicorn.requests']} requests each; the store holds {flat['gunicorn.store_mib']} MiB\n"
        )
    variants = [name for name in redis.VARIANTS if f"redis.{name}.memory_mib" in flat]
    if variants:
        rows = [["Redis in a container", *variants]]
        for name, what in (
            ("SET per second", "set_per_s"),
            ("peak, MiB", "peak_mib"),
            ("most deleted, MiB", "deleted_mib"),
            ("at the end, MiB", "memory_mib"),
            ("  live, MiB", "live_mib"),
        ):
            rows.append([name, *(figure(flat[f"redis.{variant}.{what}"], 0) for variant in variants)])
        table(rows)
        print()
    names = [name for name in third_party_servers.servers() if f"{KEY}.{name}.memory_ratio" in flat]
    if names:
        rows = [["Two containers of", "plain, MiB", "heap and sharing, MiB", "ratio", "processes with it"]]
        for name in names:
            of = {
                key: flat[f"{KEY}.{name}.{key}"]
                for key in ("memory_ratio", "given.with_heap", "given.processes")
            }
            sizes = [figure(flat[f"{KEY}.{name}.{kind}.memory_mib"], 0) for kind in third_party_servers.KINDS]
            with_heap = f"{of['given.with_heap']} of {of['given.processes']}"
            rows.append([name, *sizes, figure(of["memory_ratio"], 2), with_heap])
        table(rows)
        print()
    engines = [name for name in ("podman", "containerd") if f"starts.{name}.ratio" in flat]
    if engines:
        rows = [["Starting", "of each", "plain, ms", "quartiles", "given, ms", "quartiles", "ratio"]]
        for engine in engines:
            of = {key.removeprefix(f"starts.{engine}."): value for key, value in flat.items()}
            row = [engine, str(of["count"])]
            for kind in ("plain", "given"):
                row += [figure(of[f"{kind}.median_ms"])]
                row += [f"{of[f'{kind}.low_ms']:.0f}-{of[f'{kind}.high_ms']:.0f}"]
            rows.append([*row, figure(of["ratio"], 3)])
        table(rows)


def shown(flat: dict) -> list:
    goals = [
        ("memory of eight workers of Gunicorn, sharing over plain", 0.5, "gunicorn.memory_ratio"),
        ("their P99, sharing over plain", 1.02, "gunicorn.p99_ratio"),
        ("a container's start by Podman, with over without", 1.02, "starts.podman.ratio"),
        ("a pod's start by containerd, with over without", 1.02, "starts.containerd.ratio"),
    ]
    return [at_most(what, limit, flat[key], "x") for what, limit, key in goals if key in flat]


def main() -> int:
    about = "Measures containers with and without Mayfly"
    parser = command.parser("node/run", about, "part", PARTS, EPILOG, "fewer of all", "node.json")
    parser.add_argument("--keep", action="store_true", help="keep what other parts left in the output file")
    parsed = parser.parse_args()
    if parsed.only:
        parsed.only = ",".join("third_party" if name == KEY else name for name in parsed.only.split(","))
    command.choose(parser, parsed, "only", PARTS, all_of=True)
    return Run(parsed, shown).main(tables)


if __name__ == "__main__":
    sys.exit(main())
