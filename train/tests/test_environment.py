"""Output before training begins, while the environment is made and modules are loaded."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[1] / "environment"
# Each step waits until the test creates a file.
PYTHON = """#!/bin/sh
wait_for() { while [ ! -e "$HELD/$1" ]; do sleep 0.05; done; }
case "$*" in
    "-m venv"*) wait_for made; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip"*) echo "Collecting everything"; wait_for installed ;;
esac
"""


@pytest.fixture
def settings(tmp_path) -> dict[str, str]:
    """Environment variables with which `python3` is the program above."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").write_text(PYTHON)
    (programs / "python3").chmod(0o755)
    # A place of its own: two at once would install into the same one.
    own = {"MAYFLY_TRAIN_ENVIRONMENT": str(tmp_path / "place"), "HELD": str(tmp_path)}
    return os.environ | own | {"PATH": f"{programs}:{os.environ['PATH']}"}


def test_a_clock_ticks_while_the_environment_is_made_and_filled(settings, tmp_path):
    terminal, theirs = os.openpty()
    child = subprocess.Popen([ENVIRONMENT], env=settings, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    try:
        seen = ""
        for until, what in (("made", "making"), ("installed", "installing")):
            # The step ends only once the clock has moved.
            while not re.search(rf"train: {what}, [1-9]\d* s", seen):
                seen += os.read(terminal, 4096).decode()
            (tmp_path / until).touch()
        said, _ = child.communicate(timeout=300)
    finally:
        child.kill()
        os.close(terminal)
    assert child.returncode == 0 and said == f"{tmp_path / 'place/bin/python'}\n"
    assert "Collecting everything" in seen


def test_prints_a_line_for_each_package_without_a_terminal(settings, tmp_path):
    for each in ("made", "installed"):
        (tmp_path / each).touch()
    done = subprocess.run([ENVIRONMENT], env=settings, capture_output=True, text=True, timeout=300)
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["making", "installing", "everything"]
    # And none the second time.
    again = subprocess.run([ENVIRONMENT], env=settings, capture_output=True, text=True, timeout=300)
    assert (again.returncode, again.stderr, again.stdout) == (0, "", done.stdout)


def test_the_first_output_is_that_it_starts(tmp_path):
    terminal, theirs = os.openpty()
    settings = os.environ | {"PYTHONPATH": str(ENVIRONMENT.parents[1])}
    command = [sys.executable, "-m", "train", tmp_path / "none.parquet", "-o", tmp_path / "model"]
    child = subprocess.Popen(command, env=settings, stderr=theirs)
    os.close(theirs)
    with os.fdopen(terminal, "rb", buffering=0) as output:
        assert output.read(4096).startswith(b"\r\x1b[2Kmayfly: starting")
        assert child.wait() == 1
