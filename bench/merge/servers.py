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
from bench.merge.machine import CACHE, memory_of, take_and_return
from bench.outcome import ROOT, BenchError

HERE = Path(__file__).parent / "server"
ENVIRONMENT = ROOT / "python" / "tests" / "servers" / "environment" / "python"
METHODS = ["plain", "pack", "process"]
CLIENTS = 2
BATCH = 100
MOST_BATCHES = 100
MOST_MIB = 400  # what a worker takes at most
PARTS = 5
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
        self.method, self.workers = method, workers
        self.folder = Path(tempfile.mkdtemp(prefix="mayfly-bench-server-"))
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

    def all_share(self) -> bool:
        return self.method == "plain" or self.log.read_text().count("worker shares") == self.workers

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


def batch_of_each(servers: dict[str, Server], begin: int) -> dict[str, list[float]]:
    """Milliseconds of the same requests to all servers in turn, so that a slow moment hits all."""
    batches = {method: asked(server, range(begin, begin + BATCH)) for method, server in servers.items()}
    for number in range(begin, begin + BATCH):
        if len({batch[number][0] for batch in batches.values()}) != 1:
            raise BenchError(f"servers: answers to request {number} differ between methods")
    return {method: [ms for _, ms in batch.values()] for method, batch in batches.items()}


def warmed(servers: dict[str, Server]) -> dict[str, list[float]]:
    """Milliseconds of the first requests, until all workers share: each begins after its first answer."""
    took: dict[str, list[float]] = {method: [] for method in servers}
    for begin in range(0, MOST_BATCHES * BATCH, BATCH):
        for method, times in batch_of_each(servers, begin).items():
            took[method] += times
        if all(server.all_share() for server in servers.values()):
            return took
    missing = [method for method, server in servers.items() if not server.all_share()]
    raise BenchError(
        f"servers: {', '.join(missing)}: not all workers share after {len(took['plain'])} requests"
    )


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def started(workers: int, rounds: int) -> dict[str, list[float]]:
    """Seconds until all workers are ready, of all methods in turn."""
    took: dict[str, list[float]] = {method: [] for method in METHODS}
    with serving("plain", workers):
        pass  # what is read from files for the first time is nobody's start
    for _ in range(rounds):
        for method in METHODS:
            take_and_return(MOST_MIB * workers)
            with serving(method, workers) as server:
                took[method].append(server.start_s)
    return took


def spread(name: str, values: list[float]) -> Numbers:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def compare(workers: int, starts: int, requests: int) -> Numbers:
    numbers: Numbers = {"workers": workers, "requests": requests}
    start_s = started(workers, starts)
    with contextlib.ExitStack() as stack:
        take_and_return(len(METHODS) * MOST_MIB * workers)
        servers = {method: stack.enter_context(serving(method, workers)) for method in METHODS}
        first = warmed(servers)
        blocks = [
            batch_of_each(servers, begin) for begin in range(len(first["plain"]), requests + BATCH, BATCH)
        ]
        for method, server in servers.items():
            numbers[f"{method}.system_mib"] = system_mib(server)
    for method in METHODS:
        numbers |= {f"{method}.first_max_ms": max(first[method]), "first_requests": len(first[method])}
        times = [ms for block in blocks for ms in block[method]]
        numbers |= {f"{method}.p50_ms": percentile(times, 0.5), f"{method}.p99_ms": percentile(times, 0.99)}
        numbers |= {f"{method}.{key}": value for key, value in spread("start_s", start_s[method]).items()}
        for key in ("system_mib", "p50_ms", "p99_ms", "first_max_ms"):
            numbers[f"{method}.{key.rpartition('_')[0]}_ratio"] = (
                numbers[f"{method}.{key}"] / numbers[f"plain.{key}"]
            )
        pairs = zip(start_s[method], start_s["plain"], strict=True)
        ratios = {"start_ratio": [ours / plain for ours, plain in pairs]}
        # The same of parts of the run: how far one run can be believed.
        ratios["p99_part"] = [
            percentile(sum((block[method] for block in part), []), 0.99)
            / percentile(sum((block["plain"] for block in part), []), 0.99)
            for part in (blocks[number::PARTS] for number in range(PARTS))
            if part
        ]
        for key, values in ratios.items():
            numbers |= {f"{method}.{name}": value for name, value in spread(key, values).items()}
    return numbers
