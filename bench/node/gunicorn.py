"""Gunicorn in unchanged containers: two containers of four workers, each with a model of 128 MiB of its own.

The image is Debian with python3-gunicorn and python3-numpy, and an application without Mayfly:
each worker loads the model when it starts, as applications do that do not preload. Plain and sharing
containers run at the same time and get requests in turn.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import time

from podman4 import Podman

import node
from bench.node import debian, memory
from bench.outcome import percentile
from bench.processes import ask

PACKAGES = ["gunicorn", "python3-gunicorn", "python3-numpy"]
CONTAINERS, WORKERS = 2, 4
KINDS = {"plain": [], "shared": ["share=web"]}
APPLICATION = """
import json, threading
import numpy
weights = [numpy.random.default_rng(seed).standard_normal((1024, 4096), dtype='f4') for seed in range(8)]

def application(environment, start):
    rows = numpy.random.default_rng().standard_normal((1, 1024), dtype='f4')
    answer = json.dumps({'best': [int((rows @ part).argmax()) for part in weights]}).encode()
    start('200 OK', [('Content-Type', 'application/json'), ('Content-Length', str(len(answer)))])
    return [answer]
"""
CLIENT = """
import http.client, json, sys, time
took = []
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter()
    connection = http.client.HTTPConnection('127.0.0.1', 8000, timeout=60)
    connection.request('GET', '/')
    answer = connection.getresponse()
    assert answer.status == 200 and len(json.loads(answer.read())['best']) == 8
    connection.close()
    took.append(1e3 * (time.perf_counter() - begin))
print(json.dumps(took))
"""


def measure(podman: Podman, agent: node.Agent, requests: int, rounds: int) -> dict:
    """Memory of all workers, and latencies, of `requests` to each container a round, in turn by hundreds."""
    name = debian.image(podman, "gunicorn", PACKAGES, {"srv/application.py": APPLICATION})
    containers, found = {}, {}
    for kind, devices in KINDS.items():
        began = time.monotonic()
        containers[kind] = start(podman, name, devices)
        found[f"{kind}.start_s"] = time.monotonic() - began
    settle(containers)
    took = {kind: [[] for _ in range(rounds)] for kind in KINDS}
    for number in range(rounds):
        for hundred in range(0, requests, 100):
            # The order alternates: other load on the machine hits both equally.
            order = list(KINDS) if hundred // 100 % 2 else list(KINDS)[::-1]
            for at in range(CONTAINERS):
                for kind in order:
                    took[kind][number] += latencies(containers[kind][at], 100)
    for kind in KINDS:
        found[f"{kind}.memory_mib"] = memory.pss_mib(containers[kind])
        for part in (50, 99):
            each = [percentile(one, part) for one in took[kind]]
            found[f"{kind}.p{part}_ms"] = statistics.median(each)
            found[f"{kind}.p{part}_low_ms"], found[f"{kind}.p{part}_high_ms"] = min(each), max(each)
    stores = agent.metrics().items()
    store = next(value for key, value in stores if key.startswith("mayfly_node_store_memory_bytes"))
    found["store_mib"] = store / 2**20
    found["requests"] = requests * rounds * CONTAINERS
    for what in ("memory_mib", "p50_ms", "p99_ms"):
        found[f"{what.rsplit('_', 1)[0]}_ratio"] = found[f"shared.{what}"] / found[f"plain.{what}"]
    return found


def start(podman: Podman, name: str, devices: list[str]) -> list[int]:
    words = ["/usr/bin/gunicorn", "--chdir", "/srv", "--workers", str(WORKERS), "--bind", "127.0.0.1:8000"]
    words += ["--worker-tmp-dir", "/dev/shm", "application"]
    variables = {"OPENBLAS_NUM_THREADS": "1"}
    found = [podman.start(name, *words, devices=devices, **variables)[1] for _ in range(CONTAINERS)]

    def answers() -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return all(latencies(container, 1) for container in found)
        return False

    node.until(answers, "a server that answers", 300)
    return found


def settle(containers: dict[str, list[int]]) -> None:
    """The scanner reads large blocks twice, some seconds apart; sharing is done when memory is stable."""
    before = memory.pss_mib(containers["shared"])
    for _ in range(60):
        time.sleep(3)
        now = memory.pss_mib(containers["shared"])
        if now < 0.7 * memory.pss_mib(containers["plain"]) and abs(now - before) < 2:
            return
        before = now


def latencies(container: int, requests: int) -> list[float]:
    command = ["nsenter", "-t", str(container), "-n", sys.executable, "-c", CLIENT, str(requests)]
    return json.loads(ask(command, "the client"))
