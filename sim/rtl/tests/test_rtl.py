"""The units in SystemVerilog agree with the model; faults in them are noticed; Yosys reads them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

RTL = Path(__file__).resolve().parents[1]


def needs(tool: str):
    return pytest.mark.skipif(not shutil.which(tool), reason=f"{tool} is not installed (sim/packages.txt)")


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([RTL / "run", "--json", *words], capture_output=True, text=True)


@needs("verilator")
def test_random_operations_are_equal():
    done = run()
    assert done.returncode == 0, done.stderr
    counts = {key.removeprefix("rtl.random."): count for key, count in json.loads(done.stdout).items()}
    assert counts["operations"] >= 250_000
    # Every way through the units has been taken.
    assert not [key for key, count in counts.items() if count == 0]


@needs("verilator")
def test_faults_are_noticed():
    done = run("--faults", "neighbour-before-forgotten", "pointer-left-behind", "--operations", "100000")
    assert done.returncode == 0, done.stderr
    assert "bypass counter" in json.loads(done.stdout)["rtl.faults.neighbour-before-forgotten"]


@needs("verilator")
def test_an_unnoticed_fault_fails():
    """Without operations nothing can be noticed."""
    done = run("--faults", "search-from-above", "--operations", "0")
    assert done.returncode == 1 and "1 of 1 faults are not noticed: search-from-above" in done.stderr


@needs("yosys")
def test_yosys_reads_them():
    command = [RTL / "synthesis", "--json", "size_class", "find_first", "hot"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["rtl.hot.memory_bits"] == 64 * 388
    assert counts["rtl.hot.flip_flops"] == 64 + 1, "the rows' valid bits, and that of the row that was read"
    assert 8 <= counts["rtl.find_first.path_gates"] <= 16, "a tree of 256 leaves"
    assert counts["rtl.size_class.gates"] > 0 and counts["rtl.size_class.memory_bits"] == 0
