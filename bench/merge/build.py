"""Compiles the programs that are measured."""

from pathlib import Path

from bench.compiled import compiled
from bench.outcome import ROOT

SOURCES = Path(__file__).parent / "workloads"
HEADER = ROOT / "merge" / "include" / "mayfly_merge.h"
COMMAND = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]


def region_program() -> Path:
    """The path of the compiled program, built now if it is not up to date."""
    return compiled("merge-region", COMMAND, SOURCES / "region.c", [HEADER])


def reads_program() -> Path:
    """Likewise."""
    return compiled("merge-reads", [*COMMAND, "-O3"], SOURCES / "reads.c", [HEADER])
