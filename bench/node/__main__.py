"""Gunicorn in unchanged containers: two containers of four workers, each with a model of 128 MiB of its own.

The image is Debian with python3-gunicorn and python3-numpy, and an application that knows nothing of Mayfly:
each worker loads the model when it starts, as applications do that do not preload. Plain and sharing ones
run at the same time and are asked in turn.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "node/tests"))

from podman4 import CDI, Podman  # noqa: E402

import node  # noqa: E402
from bench.node import debian  # noqa: E402

CONTAINERS, WORKERS = 2, 4
REQUESTS = 500  # of each container and round
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


def processes(first: int) -> list[int]:
    """A process and all below it."""
    found = [first]
    for process in found:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def pss_mib(containers: list[int]) -> float:
    """What processes map, what is shared divided by those who share it."""
    total = 0
    for process in (each for container in containers for each in processes(container)):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024


def latencies(container: int, requests: int) -> list[float]:
    command = ["nsenter", "-t", str(container), "-n", sys.executable, "-c", CLIENT, str(requests)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def start(podman: Podman, name: str, shares: bool) -> tuple[list[int], float]:
    devices = ["share=web"] if shares else []
    words = ["/usr/bin/gunicorn", "--chdir", "/srv", "--workers", str(WORKERS), "--bind", "127.0.0.1:8000"]
    words += ["--worker-tmp-dir", "/dev/shm", "application"]
    began = time.monotonic()
    variables = {"OPENBLAS_NUM_THREADS": "1"}
    found = [podman.start(name, *words, devices=devices, **variables)[1] for _ in range(CONTAINERS)]

    def answers() -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return all(latencies(container, 1) for container in found)
        return False

    node.until(answers, lambda: "a server that answers", 300)
    return found, time.monotonic() - began


def measure(podman: Podman, name: str, rounds: int) -> dict:
    plain, plain_start_s = start(podman, name, False)
    shared, shared_start_s = start(podman, name, True)
    # Sharing looks at large blocks twice, some seconds apart; it is there when nothing changes any more.
    before = pss_mib(shared)
    for _ in range(60):
        time.sleep(3)
        now = pss_mib(shared)
        if now < 0.7 * pss_mib(plain) and abs(now - before) < 2:
            break
        before = now
    rows = []
    for number in range(rounds):
        took = {"plain": [], "shared": []}
        for container, other in zip(plain, shared, strict=True):
            for kind, which in (("plain", container), ("shared", other)):
                latencies(which, 20)
                took[kind] += latencies(which, REQUESTS)
        for kind, containers in (("plain", plain), ("shared", shared)):
            row = {"round": number, "kind": kind, "memory_mib": round(pss_mib(containers), 1)}
            row |= {f"p{p}_ms": round(percentile(took[kind], p / 100), 2) for p in (50, 99)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {"start_s": {"plain": round(plain_start_s, 2), "shared": round(shared_start_s, 2)}, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, and no result is kept")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("bench/node: needs root: containers and the agent do", file=sys.stderr)
        return 1
    with node.scratch() as folder:
        podman = Podman(folder)
        try:
            application = {"srv/application.py": APPLICATION}
            name = debian.image(
                podman, folder, ["gunicorn", "python3-gunicorn", "python3-numpy"], application
            )
            with node.Agent(folder, "--domain", "web", cdi=CDI) as agent:
                result = measure(podman, name, 1 if options.quick else 3)
                figures = agent.figures()
                store = next(v for k, v in figures.items() if k.startswith("mayfly_node_store_memory_bytes"))
                result["store_mib"] = round(store / 2**20, 1)
        finally:
            debian.clear(podman)
    result["load_average"] = round(os.getloadavg()[0], 1)

    def median(kind: str, what: str) -> float:
        return statistics.median(row[what] for row in result["rows"] if row["kind"] == kind)

    print(f"{'':<12} {'plain':>8} {'shared':>8} {'ratio':>6}")
    for what in ("memory_mib", "p50_ms", "p99_ms"):
        one, other = median("plain", what), median("shared", what)
        print(f"{what:<12} {one:>8.1f} {other:>8.1f} {other / one:>6.2f}")
    print(f"the store's cgroup holds {result['store_mib']} MiB; load {result['load_average']}")
    if not options.quick:
        (ROOT / "bench/results/node.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
