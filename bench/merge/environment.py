"""The Python environments that model instances and servers run in: made on demand under ~/.cache/mayfly, from
pinned and hashed requirements. PyTorch's wheel brings libraries of 5 GB, so `make setup` leaves it to this
comparison."""

import contextlib
import functools
import hashlib
import os
import subprocess
from pathlib import Path

from bench.merge.machine import CACHE
from bench.outcome import ROOT, BenchError

HERE = Path(__file__).parent
PLACE = CACHE / "bench-merge"
NEEDED = [HERE / "requirements.txt", HERE / "models.txt"]
FUNCTIONS = ROOT / "functions"
SERVERS = ROOT / "python" / "tests" / "servers" / "environment"


def made(place: Path, line: str, *lists: Path | str) -> Path:
    """The Python of an environment, created if it does not exist or has other requirements."""
    command = [ROOT / "deploy" / "environment", place, f"bench: making {place} with {line}", *lists]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        raise BenchError(f"{place} could not be made")
    return Path(ran.stdout.strip())


@functools.cache
def python() -> Path:
    """For model instances."""
    line = "PyTorch (5 GB; minutes on a fast line)"
    return made(PLACE, line, NEEDED[0], "--no-deps", NEEDED[1])


@functools.cache
def python_with_tables() -> Path:
    """For servers of tables."""
    line = "pandas, Polars and DuckDB (600 MB, a minute)"
    return made(CACHE / "bench-tables", line, HERE / "tables.txt")


@functools.cache
def python_of_functions(names: tuple[str, ...]) -> Path:
    """For instances of functions: one for all of these, whose lists have nothing twice and are complete."""
    lists = [word for name in names for word in ("--no-deps", FUNCTIONS / name / "requirements.txt")]
    return made(CACHE / "bench-functions", "what the functions import (40 MB)", *lists)


@functools.cache
def python_of_servers() -> Path:
    """For other servers: the one that the recipes are tested in."""
    ran = subprocess.run([SERVERS / "python"], stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        raise BenchError(f"{SERVERS}: could not make the environment of the servers")
    return Path(ran.stdout.strip())


def variables() -> dict[str, str]:
    """Variables of an instance besides the caller's: import paths, one thread each."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


# Debian's PyTorch is 1.13, without CUDA's libraries: besides its parameters an instance has as little memory
# as when the paper was written.
DEBIAN = "-debian"


def debian_python() -> Path:
    """The system's Python, with python3-torch."""
    if not has_debian_torch():
        raise BenchError("no PyTorch of Debian's: run 'apt install python3-torch'")
    return Path("/usr/bin/python3")


@functools.cache
def has_debian_torch() -> bool:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode == 0
    return False


def python_of(network: str) -> Path:
    return debian_python() if network.endswith(DEBIAN) else python()


def compile_package(network: str) -> None:
    """Compiles the package as pip does: instances write no bytecode, and would compile it at each start."""
    command = [python_of(network), "-m", "compileall", "-q", ROOT / "python" / "mayfly"]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise BenchError("python/mayfly could not be compiled")


def model_files(network: str = "") -> Path:
    """The folder with the models' files, written once; PyTorch 1 reads and writes its own."""
    sources = [*(HERE / "model" / f"{name}.py" for name in ("networks", "bert", "prepare")), *NEEDED]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    interpreter = python_of(network)
    is_debian = network.endswith(DEBIAN)
    folder = CACHE / f"bench-models{DEBIAN}-{digest}" if is_debian else PLACE / f"models-{digest}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        new.mkdir(parents=True, exist_ok=True)
        subprocess_environment = os.environ | variables()
        names = ["resnet50", "alexnet"] if is_debian else []
        made = subprocess.run(
            [interpreter, "-m", "bench.merge.model.prepare", new, *names],
            env=subprocess_environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        if made.returncode:
            raise BenchError(f"writing the models failed: {made.stderr.strip().splitlines()[-1]}")
        new.rename(folder)
    return folder
