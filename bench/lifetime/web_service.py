"""A web service in Python under load (servers/web_service.py): orders over a few connections, then reports of
whole days over many at once, then few orders again. Every answer is checked."""

import http.client
import json
import random
import socket
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.server import scratch_folder, socket_answers
from bench.heap.third_party.life import drive, server_with_probe
from bench.outcome import BenchError

SERVER = Path(__file__).parent / "servers" / "web_service.py"
DAYS, CUSTOMERS, ITEMS = 12, 2_000, 8


@dataclass(frozen=True)
class Scale:
    orders: int
    at_once: int  # reports
    reports: int
    light: int


FULL = Scale(orders=12_000, at_once=40, reports=160, light=500)
QUICK = Scale(orders=1_500, at_once=16, reports=32, light=100)


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path):
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))

    def ask(self, method: str, path: str, value: object = None) -> dict:
        self.request(method, path, None if value is None else json.dumps(value))
        answer = self.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise BenchError(f"the web service answered {answer.status}")
        return json.loads(text)


class Load:
    """The requests, by a seed, and the sums that the answers must have."""

    def __init__(self, path: Path):
        self.path, self.lock = path, threading.Lock()
        self.cents: Counter[int] = Counter()

    def orders(self, connections: int, count: int, seed: int) -> None:
        def some(number: int) -> None:
            chance, connection = random.Random(f"{seed} {number}"), Connection(self.path)
            for _ in range(count // connections):
                items = [
                    {"item": f"item {chance.randrange(5000)}", "cents": chance.randrange(9999)}
                    for _ in range(ITEMS)
                ]
                day, customer = chance.randrange(DAYS), f"customer {chance.randrange(CUSTOMERS)}"
                wanted = sum(one["cents"] for one in items)
                found = connection.ask("POST", "/orders", {"day": day, "customer": customer, "items": items})
                if found != {"count": ITEMS, "cents": wanted}:
                    raise BenchError(f"the web service took an order of {wanted} cents for {found}")
                with self.lock:
                    self.cents[day] += wanted
            connection.close()

        self.at_once(connections, some)

    def reports(self, connections: int, count: int) -> None:
        def some(number: int) -> None:
            connection = Connection(self.path)
            for n in range(count // connections):
                day = (number + n) % DAYS
                found = connection.ask("GET", f"/report/{day}")
                if found["cents"] != self.cents[day]:
                    raise BenchError(
                        f"the web service's report has {found['cents']} cents, not {self.cents[day]}"
                    )
            connection.close()

        self.at_once(connections, some)

    def at_once(self, connections: int, some) -> None:
        with ThreadPoolExecutor(connections) as threads:
            list(threads.map(some, range(connections)))


def run(allocator: Allocator, is_quick: bool) -> Numbers:
    scale = QUICK if is_quick else FULL
    # Or CPython's small objects would lie in its own arenas.
    allocator = replace(allocator, settings=allocator.settings | {"PYTHONMALLOC": "malloc"})
    with scratch_folder() as folder:
        command = [sys.executable, str(SERVER), "{socket}"]
        with server_with_probe(allocator, command, folder, socket_answers) as server:
            load = Load(server.socket_path)
            return drive(
                server,
                [
                    ("load", lambda: load.orders(8, scale.orders, 1)),
                    ("peak", lambda: load.reports(scale.at_once, scale.reports)),
                    ("light", lambda: load.orders(2, scale.light, 2)),
                ],
            )
