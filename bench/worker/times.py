"""Times of a start, an answer and a rest: the milliseconds of a cold start, requests a second of a function
that does nothing beside gunicorn, the cost of resting and merging for a function that is called now and
then."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.compiled import compiled
from bench.merge.environment import python_of_servers
from bench.outcome import BenchError, percentile
from bench.processes import ask, free_port
from bench.worker.experiments import VARIANTS
from bench.worker.worker import BEFORE, Worker, below, running

HERE = Path(__file__).parent
NOOP = HERE / "noop"
CONNECTIONS = (1, 16, 64)
SERVERS = ("gunicorn", "gunicorn threads")
TICKS = os.sysconf("SC_CLK_TCK")
Numbers = dict[str, float]


def starts(function: str, rounds: int) -> Numbers:
    """New instances on workers of all variants in turn, each after the one before has ended: ms until it
    asks for work, and until its first answer. With snapshots they are restored."""
    template = {"template": NOOP / "template.yaml"} if function in ("shell", "noop") else {}
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    answers: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(running(*VARIANTS[name], "--keep-alive", "1", **template))
            for name in VARIANTS
        }
        for number in range(rounds + 1):
            for variant, worker in workers.items():
                worker.wait_until_empty()
                answer = worker.invoke(function, number)
                if number:  # the first one finds nothing in the page cache, no page store and no snapshot
                    times[variant].append(worker.starts(function)[-1])
                    answers[variant].append(answer)
            if not number and function != "shell":
                workers["mayfly"].wait_for_snapshots((function,))
    numbers = {}
    for variant in VARIANTS:
        numbers |= {
            f"{variant}.start_ms": median(times[variant]),
            f"{variant}.least_ms": min(times[variant]),
            f"{variant}.p75_ms": percentile(times[variant], 75),
            f"{variant}.answer_ms": median(answers[variant]),
        }
    return numbers


def rates(rounds: int, seconds: float) -> Numbers:
    """A function that does nothing, on a plain worker and on one with all layers, and gunicorn with the same
    body, in turn: requests a second at so many connections, P50 and P99 of one."""
    load = compiled("worker-load", ["gcc", "-O2", "-Wall", "-Wextra"], HERE / "load.c")
    found: dict[str, list[list[float]]] = {}
    path = "/2015-03-31/functions/noop/invocations"
    with contextlib.ExitStack() as stack:
        arguments = {"template": NOOP / "template.yaml"}
        ports = {
            variant: (stack.enter_context(running(*VARIANTS[variant], **arguments)).port, path)
            for variant in ("plain", "mayfly")
        }
        if BEFORE:
            before = stack.enter_context(running(**arguments, program=Path(BEFORE)))
            ports["before"] = (before.port, path)
        ports |= {name: (stack.enter_context(gunicorn(name)), "/") for name in SERVERS}
        for number in range(rounds + 1):
            for connections in CONNECTIONS:
                for name, (port, where) in ports.items():
                    command = [load, port, where, "{}", connections, seconds if number else 1]
                    printed = ask(command, name)
                    if number:  # in the first round instances start
                        numbers = [float(word) for word in printed.split()]
                        found.setdefault(f"{name}.{connections}", []).append(numbers)
    flat = {}
    for name, measured in found.items():
        for key, values in zip(("per_s", "p50_ms", "p99_ms"), zip(*measured, strict=True), strict=True):
            flat[f"{name}.{key}"] = median(values)
        flat[f"{name}.least_per_s"] = min(one[0] for one in measured)
        flat[f"{name}.most_per_s"] = max(one[0] for one in measured)
    return flat


@contextlib.contextmanager
def gunicorn(name: str) -> Iterator[int]:
    """gunicorn with a worker for each processor and one more, as its manual recommends, or with threads,
    which keep connections open."""
    workers = len(os.sched_getaffinity(0)) + 1
    threads = ["--threads", str(max(CONNECTIONS))] if name == "gunicorn threads" else []
    port = free_port()
    process = subprocess.Popen(
        [python_of_servers(), "-m", "gunicorn", "--workers", str(workers), *threads,
         "--bind", f"127.0.0.1:{port}", "app:application"],
        cwd=NOOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError("gunicorn does not start")
            time.sleep(0.05)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def rests(function: str, rounds: int, pause_s: float) -> Numbers:
    """Two instances of a function on a plain worker and on one with all layers, called in turn, ten times
    and then not for a while, in which they rest: CPU seconds of all of a worker's processes, and the first
    request after the pause."""
    first: dict[str, list[float]] = {variant: [] for variant in ("plain", "mayfly")}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(running(*VARIANTS[name], "--burst", "2")) for name in first}
        for worker in workers.values():
            worker.start_instances(function, 2)
            worker.wait_for_rest()
        before = {name: cpu_s(worker) for name, worker in workers.items()}
        for number in range(rounds):
            for name, worker in workers.items():
                first[name].append(worker.invoke(function, number))
                for more in range(9):
                    worker.invoke(function, 10 * number + more)
            time.sleep(pause_s)
        used = {name: cpu_s(worker) - before[name] for name, worker in workers.items()}
    numbers = {}
    for name in first:
        numbers |= {f"{name}.cpu_s": used[name], f"{name}.after_pause_p50_ms": median(first[name])}
    return numbers


def cpu_s(worker: Worker) -> float:
    """CPU seconds of the worker, its instances and its page stores, ended ones included."""
    total = 0
    for process in [worker.process.pid, *below(worker.process.pid, with_stores=True)]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS
