"""Compiles the measured programs."""

from pathlib import Path

from bench.compiled import compiled
from bench.outcome import ROOT

SOURCES = Path(__file__).parent / "workloads"
HEADER = ROOT / "merge" / "include" / "mayfly_merge.h"
COMMAND = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]


def region_program() -> Path:
    """The path of the compiled program, which is built if it is out of date."""
    return compiled("merge-region", COMMAND, SOURCES / "region.c", [HEADER])


def reads_program() -> Path:
    """The same of reads.c."""
    return compiled("merge-reads", [*COMMAND, "-O3"], SOURCES / "reads.c", [HEADER])
