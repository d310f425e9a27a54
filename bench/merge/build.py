"""Compiles the region program."""

from pathlib import Path

from bench.compiled import compiled
from bench.outcome import ROOT

SOURCE = Path(__file__).parent / "workloads" / "region.c"
HEADER = ROOT / "merge" / "include" / "mayfly_merge.h"
COMMAND = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]


def region_program() -> Path:
    """The path of the compiled program, built now if it is not up to date."""
    return compiled("merge-region", COMMAND, SOURCE, [HEADER])
