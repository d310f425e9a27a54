"""MariaDB, a thread for each connection, under sysbench: few connections, 150 with large sorts, few again.

https://mariadb.org, https://github.com/akopytov/sysbench; both as Debian builds them.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.compiled import BUILD
from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.server import Server, scratch_folder, socket_answers, tool
from bench.heap.third_party.life import drive, installed, server_with_probe
from bench.outcome import BenchError
from bench.processes import ask

SERVER = "/usr/sbin/mariadbd"


@dataclass(frozen=True)
class Scale:
    rows: int  # in each of four tables
    load_events: int
    peak_connections: int
    peak_events: int
    light_events: int


FULL = Scale(rows=10_000, load_events=2_000, peak_connections=150, peak_events=1_500, light_events=300)
QUICK = Scale(rows=4_000, load_events=400, peak_connections=100, peak_events=500, light_events=100)


def run(allocator: Allocator, is_quick: bool) -> Numbers:
    scale = QUICK if is_quick else FULL
    with scratch_folder() as folder:
        shutil.copytree(new_database(), Path(folder) / "data")
        command = [installed(SERVER, "mariadb-server-core"), "--no-defaults", f"--datadir={folder}/data"]
        command += ["--socket={socket}", "--skip-networking", "--max-connections=500", "--user=root"]
        # A small instance: the buffer pool is a mapping of its own and the same for every allocator.
        command += ["--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0"]
        command += ["--innodb-use-native-aio=0", "--table-open-cache=1000", "--open-files-limit=4096"]
        with server_with_probe(allocator, command, folder, socket_answers) as server:
            client = [tool("mariadb"), "--no-defaults", f"--socket={server.socket_path}", "--user=root"]
            ask([*client, "-e", "CREATE DATABASE sbtest"], "mariadb")
            return drive(
                server,
                [
                    ("prepare", lambda: sysbench(server, scale, "oltp_read_write", "prepare")),
                    ("load", lambda: events(server, scale, "oltp_read_write", 16, scale.load_events)),
                    ("peak", lambda: peak(server, scale)),
                    ("light", lambda: events(server, scale, "oltp_read_write", 4, scale.light_events)),
                ],
            )


def peak(server: Server, scale: Scale) -> None:
    """Ranges of 2,000 rows, ordered: each needs a sort buffer."""
    events(server, scale, "oltp_read_only", scale.peak_connections, scale.peak_events, "--range-size=2000")


def events(server: Server, scale: Scale, test: str, connections: int, number: int, *more: str) -> None:
    sysbench(server, scale, test, "run", f"--threads={connections}", f"--events={number}", "--time=0", *more)


def sysbench(server: Server, scale: Scale, test: str, verb: str, *more: str) -> None:
    command = [tool("sysbench"), test, "--db-driver=mysql", f"--mysql-socket={server.socket_path}"]
    command += ["--mysql-user=root", "--tables=4", f"--table-size={scale.rows}", "--rand-seed=11"]
    ask([*command, *more, verb], f"sysbench {test} {verb}")


def new_database() -> Path:
    """An empty database, made once: every run has a copy."""
    ready = BUILD / "mariadb-empty"
    if ready.exists():
        return ready
    making = BUILD / f"mariadb-making-{os.getpid()}"
    command = [tool("mariadb-install-db"), "--no-defaults", f"--datadir={making}", "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"]
    if os.geteuid() == 0:
        command += ["--user=root"]
    BUILD.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"mariadb-install-db: {(done.stderr or done.stdout).strip()[-300:]}")
    making.rename(ready)
    return ready
