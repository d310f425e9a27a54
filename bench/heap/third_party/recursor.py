"""PowerDNS Recursor under dnsperf: names asked for again, then a flood of new ones, a flush, then few.

The answers come from PowerDNS' authoritative server with a wildcard, on glibc, not measured. After the flood
the operator flushes the cache with rec_control. https://www.powerdns.com,
https://www.dns-oarc.net/tools/dnsperf; all as Debian builds them.
"""

import contextlib
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.server import Server, scratch_folder, tool, wait_until
from bench.heap.third_party.life import drive, installed, server_with_probe
from bench.outcome import BenchError
from bench.processes import ask, end, free_port

SERVER = "/usr/sbin/pdns_recursor"
ZONE = """$ORIGIN example.
$TTL 3600
@ IN SOA ns.example. admin.example. 1 3600 600 86400 5
@ IN NS ns.example.
ns IN A 127.0.0.1
* IN A 192.0.2.1
* IN TXT "one of those records that services are verified by, a hundred bytes or so, seen everywhere"
"""


@dataclass(frozen=True)
class Scale:
    load_names: int
    load_times: int
    flood_names: int
    light_names: int


FULL = Scale(load_names=5_000, load_times=4, flood_names=80_000, light_names=3_000)
QUICK = Scale(load_names=2_000, load_times=2, flood_names=20_000, light_names=1_000)


def run(allocator: Allocator, is_quick: bool) -> Numbers:
    scale = QUICK if is_quick else FULL
    with scratch_folder() as folder, authority(Path(folder)) as upstream:
        port = free_port(socket.SOCK_DGRAM)
        command = [installed(SERVER, "pdns-recursor"), f"--config-dir={folder}", f"--socket-dir={folder}"]
        command += ["--local-address=127.0.0.1", f"--local-port={port}", "--daemon=no", "--disable-syslog"]
        command += [f"--forward-zones=example=127.0.0.1:{upstream}", "--dont-query=", "--dnssec=off"]
        command += ["--threads=2", "--loglevel=3"]

        def asking(first: int, names: int, times: int) -> None:
            questions = Path(folder) / "questions"
            with open(questions, "w") as file:
                for number in range(first, first + names):
                    file.write(f"host-{number}.example. {'TXT' if number % 2 else 'A'}\n")
            command = [tool("dnsperf"), "-s", "127.0.0.1", "-p", str(port), "-d", str(questions)]
            output = ask([*command, "-c", "16", "-q", "200", "-n", str(times)], "dnsperf")
            if "Queries completed" not in output:
                raise BenchError(f"dnsperf: {output[-200:]}")

        def flush() -> None:
            control = [tool("rec_control"), f"--config-dir={folder}", f"--socket-dir={folder}"]
            ask([*control, "wipe-cache", "example$"], "rec_control")

        with server_with_probe(allocator, command, folder, lambda server: answers(server, port)) as server:
            return drive(
                server,
                [
                    ("load", lambda: asking(0, scale.load_names, scale.load_times)),
                    ("peak", lambda: asking(1_000_000, scale.flood_names, 1)),
                    ("flush", flush),
                    ("light", lambda: asking(0, scale.light_names, 1)),
                ],
            )


@contextlib.contextmanager
def authority(folder: Path) -> Iterator[int]:
    """The authoritative server; its port."""
    port = free_port(socket.SOCK_DGRAM)
    (folder / "zone").write_text(ZONE)
    (folder / "named.conf").write_text(f'zone "example" {{ type master; file "{folder}/zone"; }};\n')
    own = folder / "authority"
    own.mkdir()
    command = [tool("pdns_server"), f"--config-dir={own}", f"--socket-dir={own}", "--launch=bind"]
    command += [f"--bind-config={folder}/named.conf", "--local-address=127.0.0.1", f"--local-port={port}"]
    command += ["--daemon=no", "--guardian=no", "--disable-syslog", "--loglevel=2", "--receiver-threads=1"]
    with open(own / "log", "w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(Waiting(process), lambda _: answers(None, port))
            yield port
        finally:
            end(process)


@dataclass
class Waiting:
    process: subprocess.Popen


def answers(_: Server | None, port: int) -> bool:
    """Whether a DNS server on the port serves the zone (a hand-made query for the SOA of example.)."""
    name = b"\x07example\x00"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.5)
        client.sendto(
            struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + name + struct.pack("!2H", 6, 1), ("127.0.0.1", port)
        )
        reply = client.recv(512)
    return reply[3] & 15 == 0
