"""The four workloads of LLAMA §9, as rebuilt here. Each runs on a variant, checks every answer, and returns
its speed and its memory over time."""

import contextlib
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.compiled import BUILD
from bench.heap import redis
from bench.heap.server import scratch_folder, wait_until
from bench.lifetime import build, redis_load
from bench.lifetime.network import network
from bench.lifetime.process import AtEnd, Memory, follow, running
from bench.lifetime.variants import Variant
from bench.outcome import BenchError
from bench.processes import last_words

LOAD_TIMEOUT_S = 400


@dataclass(frozen=True)
class Size:
    """How much of a workload: a fraction of the full one, and the rest before memory is measured."""

    scale: float
    settle_s: float


FULL, QUICK = Size(1.0, 3.0), Size(0.05, 0.5)


@dataclass
class Run:
    """The result of one run of a workload. `speed`: requests_per_s, and p50_ms and p99_ms of timed
    requests."""

    speed: dict[str, float]
    memory: Memory
    at_end: AtEnd
    heap: dict[str, float]  # Mayfly's statistics at the end, `heap.*`

    @classmethod
    def kept(cls, kept: dict) -> "Run":
        """The run that `dataclasses.asdict` turned into this value, which was kept as JSON."""
        return cls(kept["speed"], Memory(**kept["memory"]), AtEnd(**kept["at_end"]), kept["heap"])

    def mib(self, name: str) -> float | None:
        """`end_resident_mib`, `end_ranges_mib`, `end_huge_mib`, `end_live_mib`; `peak_`, but not of huge."""
        moment, _, unit = name.removesuffix("_mib").partition("_")
        if moment == "end":
            return getattr(self.at_end, unit, None)
        if moment == "peak" and hasattr(self.memory, unit):
            return max((mib for _, mib in getattr(self.memory, unit)), default=0.0)
        return None


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    about: str
    run: Callable[[Variant, Size, int], Run]
    trace_gib: float = 1  # of the full load, 96 bytes for an allocation and its free
    sample_every: str = "16k"  # of the profiled run: just enough samples of rare contexts


@contextlib.contextmanager
def load_generator(command: list) -> Iterator[subprocess.Popen]:
    """A load generator, on the system's own allocator. It must succeed, and end in time."""
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        process.wait(LOAD_TIMEOUT_S)
    except BenchError:
        # The load's error about a failed server is more specific than the server's end.
        if process.poll() is None:
            raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        message = last_words(process.stderr.read(), process.returncode)
        raise BenchError(f"{Path(command[0]).name}: {message}")


def served(
    name: str, server_arguments: list, variant: Variant, size: Size, seed: int, built: Path | None = None
) -> Run:
    with scratch_folder() as folder:
        server = built or build.program(f"{name}_server")
        command = [server, Path(folder) / "socket", *server_arguments]
        with running(variant, command, Path(folder)) as program:
            wait_until(program)
            load = [build.program(f"{name}_load"), program.socket_path, seed, size.scale, *server_arguments]
            with load_generator(load) as speaker:
                speed, at_end = follow(program, speaker, size.settle_s)
        return Run(speed, program.memory_over_time, at_end, program.heap)


def image(variant: Variant, size: Size, seed: int, built: Path | None = None) -> Run:
    """`built`: another build of the server."""
    return served("image", [], variant, size, seed, built)


def inference(variant: Variant, size: Size, seed: int) -> Run:
    return served("inference", [network()], variant, size, seed)


def pipeline(variant: Variant, size: Size, seed: int) -> Run:
    """Counts over three files; the counts of words must be those that the generator wrote beside them."""
    words, threads = max(2000, int(720_000 * size.scale)), 64
    texts = [text(words, seed * 10 + file) for file in range(3)]
    with scratch_folder() as name:
        folder, out = Path(name), Path(name) / "counts"
        out.mkdir()
        command = [build.program("pipeline"), out, threads, *texts]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with running(variant, command, folder, **pipes) as program:
            speed, at_end = follow(program, program.process, size.settle_s)
        for name, wanted in counts_of(texts).items():
            if (out / name).read_text() != "".join(f"{key} {wanted[key]}\n" for key in sorted(wanted)):
                raise BenchError(f"the counts of {name} are not those of the text")
        return Run(speed, program.memory_over_time, at_end, program.heap)


def text(words: int, seed: int) -> Path:
    """A file of words, made once for each length and seed."""
    path = BUILD / "texts" / f"{words}-{seed}.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        subprocess.run(
            [build.program("text"), new, path.with_suffix(".counts"), str(words), str(seed)], check=True
        )
        new.rename(path)
    return path


def counts_of(texts: list[Path]) -> dict[str, Counter[str]]:
    """The counts that the pipeline must find."""
    names = ("words", "beginnings", "endings", "lengths", "first_words", "last_words")
    found: dict[str, Counter[str]] = {name: Counter() for name in names}
    for path in texts:
        for line in path.with_suffix(".counts").read_text().splitlines():
            word, _, times = line.partition(" ")
            keys = {"words": word, "beginnings": word[:6], "endings": word[-3:], "lengths": str(len(word))}
            for name, key in keys.items():
                found[name][key] += int(times)
        for line in path.read_text().splitlines():
            words = line.split()
            found["first_words"][words[0]] += 1
            found["last_words"][words[-1]] += 1
    return found


def redis_run(variant: Variant, size: Size, seed: int) -> Run:
    """The tests' keys are drawn by redis-benchmark, which takes no seed."""
    with scratch_folder() as folder:
        command = [part.replace("{socket}", f"{folder}/socket") for part in redis.server_command()]
        with running(variant, command, Path(folder)) as program:
            wait_until(program)
            load = redis_load.Load(program, redis_load.FULL.scaled(size.scale), size.settle_s)
            load.everything()
        return Run(load.speed, program.memory_over_time, load.at_end, program.heap)


WORKLOADS = {
    one.name: one
    for one in [
        Workload(
            "image",
            "Image server",
            "libvips: small and large images in shifting phases",
            image,
            trace_gib=13,
        ),
        Workload(
            "inference", "Inference server", "OpenCV's DNN: open_nsfw, batches and new models", inference
        ),
        Workload("pipeline", "Data pipeline", "word count in stages by 64 threads", pipeline, trace_gib=3.5),
        Workload(
            "redis", "Redis", "redis-benchmark's tests, 5,000 connections, values of every type", redis_run
        ),
    ]
}
