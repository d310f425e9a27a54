"""Python servers whose workers have loaded the same data, each for itself and with ASLR: starts them, sends
requests, ends them."""

import contextlib
import hashlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.merge import environment, store
from bench.merge.machine import CACHE, MAYFLY, memory_of
from bench.outcome import ROOT, BenchError
from bench.processes import ask, free_port

HERE = Path(__file__).parent / "server"


@dataclass(frozen=True)
class Kind:
    """A server program, the data of its workers, and its command line for a number of workers and a port."""

    program: str
    module: str
    words: Callable[[int, int], list[str]]
    python: Callable[[], Path] = environment.python_of_servers
    # Whether `mayfly share run` starts the server all of whose workers is advised: with one layout.
    launched: bool = False


def gunicorn_words(module: str) -> Callable[[int, int], list[str]]:
    return lambda workers, port: [
        "--workers", str(workers), "--timeout", "600", "--bind", f"127.0.0.1:{port}",
        "--config", str(HERE / "gunicorn.conf.py"), f"{module}:application",
    ]  # fmt: skip


GUNICORN = Kind("gunicorn", "app", gunicorn_words("app"))
TABLES = Kind("gunicorn", "rows", gunicorn_words("rows"), environment.python_with_tables, launched=True)
UVICORN = Kind(
    "uvicorn",
    "search",
    lambda workers, port: ["--workers", str(workers), "--port", str(port), "--log-level", "warning",
                           "search:application"],
)  # fmt: skip


def files(interpreter: Path, module: str) -> Path:
    """The workers' data, written once."""
    source = HERE / f"{module}.py"
    digest = hashlib.sha256(source.read_bytes() + str(interpreter).encode()).hexdigest()[:16]
    folder = CACHE / f"bench-server-{digest}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        new.mkdir(parents=True, exist_ok=True)
        ask([interpreter, source, new], "writing the server's files")
        new.rename(folder)
    return folder


class Server:
    """One server, from start to end."""

    def __init__(self, kind: Kind, method: str, workers: int, extra: dict[str, str]):
        interpreter = kind.python()
        launcher = [MAYFLY, "share", "run", "--"] if kind.launched and method == "process" else []
        self.method, self.workers = method, workers
        self.folder = Path(tempfile.mkdtemp(prefix="mayfly-bench-server-"))
        self.log = self.folder / "log"
        self.port = free_port()
        variables = os.environ | extra | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "python")]),
            "MAYFLY_BENCH_METHOD": method,
            "MAYFLY_BENCH_MODULE": kind.module,
            "MAYFLY_BENCH_FILES": str(files(interpreter, kind.module)),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "1",
        }  # fmt: skip
        begun = time.monotonic()
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                [*launcher, interpreter, "-m", kind.program, *kind.words(workers, self.port)],
                env=variables,
                cwd=self.folder,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        while self.log.read_text().count("worker ready") < workers:
            if self.process.poll() is not None or time.monotonic() > begun + 600:
                self.end()
                raise BenchError(f"{kind.program} did not start: {self.log.read_text()[-500:]}")
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
def serving(kind: Kind, method: str, workers: int):
    """A server, with a store of its own if it merges."""
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(store.running()) if method != "plain" else None
        server = Server(kind, method, workers, shared.environment() if shared else {})
        server.store = shared
        stack.callback(server.end)
        yield server


def system_mib(server: Server) -> float:
    """PSS of all its processes and of the store, and the store's pages that no process maps now."""
    of_all = memory_of(server.pids())
    if server.store is None:
        return of_all["pss"]
    daemon = memory_of([server.store.pid])
    untouched = server.store.blocks_mib() - of_all["pss_store"] - daemon["pss_store"]
    return of_all["pss"] + daemon["pss"] + max(0.0, untouched)
