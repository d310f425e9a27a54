"""The programs of `sim/tests`, and `mayfly sim` on them: the release build, or what MAYFLY names."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAYFLY = os.environ.get("MAYFLY", str(ROOT / "target/release/mayfly"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the programs are, and what `sim` writes."""
    folder = tmp_path_factory.mktemp("sim")
    for source in (ROOT / "sim/tests/programs").glob("*.c"):
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", folder / source.stem, source]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="session")
def sim(folder):
    def run(*words, **variables):
        command = [MAYFLY, "sim", *words]
        return subprocess.run(
            command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=1800
        )

    run.command = [MAYFLY, "sim"]
    return run


@pytest.fixture(scope="session")
def first(folder, sim):
    """The process, and the folder with the statistics of 20000 turns."""
    return sim("--out", "first", "--", "./churn", "20000"), folder / "first/stats.json"
