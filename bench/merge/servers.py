"""gunicorn with eight workers that have loaded a forest, embeddings and a frame, each for itself and with
ASLR: memory of all together, how long requests take, how long the start takes; plain, with the recipe of
python/README.md, and with all of each worker advised."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

from bench.merge import store
from bench.merge.machine import CACHE, memory_of
from bench.outcome import ROOT, BenchError

HERE = Path(__file__).parent / "server"
ENVIRONMENT = ROOT / "python" / "tests" / "servers" / "environment" / "python"
METHODS = ["plain", "pack", "process"]
CLIENTS = 2
BATCH = 100
Numbers = dict[str, float]


def python() -> str:
    made = subprocess.run([ENVIRONMENT], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        raise BenchError(f"{ENVIRONMENT}: could not make the environment of the servers")
    return made.stdout.strip()


def files(interpreter: str) -> Path:
    """What the workers load, written once."""
    digest = hashlib.sha256((HERE / "app.py").read_bytes() + interpreter.encode()).hexdigest()[:16]
    folder = CACHE / f"bench-server-{digest}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        new.mkdir(parents=True, exist_ok=True)
        made = subprocess.run([interpreter, HERE / "app.py", new], stderr=subprocess.PIPE, text=True)
        if made.returncode:
            raise BenchError(f"writing the server's files failed: {made.stderr.strip().splitlines()[-1]}")
        new.rename(folder)
    return folder


class Server:
    """One gunicorn, from start to end."""

    def __init__(self, method: str, workers: int, extra: dict[str, str]):
        interpreter = python()
        self.method, self.folder = method, Path(tempfile.mkdtemp(prefix="mayfly-bench-server-"))
        self.log = self.folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = os.environ | extra | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "python")]),
            "MAYFLY_BENCH_METHOD": method,
            "MAYFLY_BENCH_FILES": str(files(interpreter)),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        begun = time.monotonic()
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                [interpreter, "-m", "gunicorn", "--workers", str(workers), "--timeout", "600", "--config",
                 HERE / "gunicorn.conf.py", "--bind", f"127.0.0.1:{self.port}", "app:application"],
                env=environment, cwd=self.folder, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        while self.log.read_text().count("worker ready") < workers:
            if self.process.poll() is not None or time.monotonic() > begun + 600:
                self.end()
                raise BenchError(f"gunicorn did not start: {self.log.read_text()[-500:]}")
            time.sleep(0.02)
        self.start_s = time.monotonic() - begun

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [self.process.pid, *map(int, children.split())]

    def ask(self, number: int) -> tuple[str, float]:
        begun = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/?{number}", timeout=120) as answer:
            text = answer.read().decode()
        return text, 1000 * (time.monotonic() - begun)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def serving(method: str, workers: int):
    """A server, with a store of its own if it merges."""
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(store.running()) if method != "plain" else None
        server = Server(method, workers, shared.environment() if shared else {})
        server.store = shared
        stack.callback(server.end)
        yield server


def system_mib(server: Server) -> float:
    """PSS of all its processes; of the store's too, and what is in it and mapped by nobody just now."""
    of_all = memory_of(server.pids())
    if server.store is None:
        return of_all["pss"]
    daemon = memory_of([server.store.pid])
    untouched = server.store.blocks_mib() - of_all["pss_store"] - daemon["pss_store"]
    return of_all["pss"] + daemon["pss"] + max(0.0, untouched)


def asked(server: Server, numbers: range) -> dict[int, tuple[str, float]]:
    """Answers and milliseconds, of a few clients at a time."""
    found: dict[int, tuple[str, float]] = {}

    def client(first: int) -> None:
        for number in numbers[first::CLIENTS]:
            found[number] = server.ask(number)

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) != len(numbers):
        raise BenchError(
            f"servers: {server.method}: only {len(found)} of {len(numbers)} requests were answered"
        )
    return found


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def compare(workers: int, starts: int, requests: int) -> Numbers:
    """Requests go to all servers in turn, so that a slow moment of the machine hits all; starts likewise."""
    numbers: Numbers = {"workers": workers, "requests": requests}
    start_s: dict[str, list[float]] = {method: [] for method in METHODS}
    with serving("plain", workers):
        pass  # what is read from files for the first time is nobody's start
    for _ in range(starts):
        for method in METHODS:
            with serving(method, workers) as server:
                start_s[method].append(server.start_s)
    with contextlib.ExitStack() as stack:
        servers = {method: stack.enter_context(serving(method, workers)) for method in METHODS}
        took: dict[str, list[list[float]]] = {method: [] for method in METHODS}
        for begin in range(0, requests + BATCH, BATCH):
            batches = {
                method: asked(server, range(begin, begin + BATCH)) for method, server in servers.items()
            }
            for number in range(begin, begin + BATCH):
                if len({batch[number][0] for batch in batches.values()}) != 1:
                    raise BenchError(f"servers: answers to request {number} differ between methods")
            for method, batch in batches.items():
                took[method].append([ms for _, ms in batch.values()])
        for method, server in servers.items():
            numbers[f"{method}.system_mib"] = system_mib(server)
    for method in METHODS:
        # The first warms; in it the workers share, each after its first answer.
        numbers[f"{method}.first_max_ms"] = max(took[method][0])
        times = [ms for batch in took[method][1:] for ms in batch]
        numbers[f"{method}.p50_ms"], numbers[f"{method}.p99_ms"] = (
            percentile(times, 0.5),
            percentile(times, 0.99),
        )
        numbers[f"{method}.start_s"] = median(start_s[method])
        numbers[f"{method}.start_min_s"], numbers[f"{method}.start_max_s"] = (
            min(start_s[method]),
            max(start_s[method]),
        )
        for key in ("system_mib", "p50_ms", "p99_ms"):
            numbers[f"{method}.{key.rpartition('_')[0]}_ratio"] = (
                numbers[f"{method}.{key}"] / numbers[f"plain.{key}"]
            )
        pairs = zip(start_s[method], start_s["plain"], strict=True)
        numbers[f"{method}.start_ratio"] = median(ours / plain for ours, plain in pairs)
    return numbers
