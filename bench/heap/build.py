"""Compiles the C++ workloads."""

from pathlib import Path

from bench.compiled import compiled

SOURCES = Path(__file__).parent / "workloads"
# Without -fno-builtin the compiler may remove an allocation and its free together.
COMMAND = ["g++", "-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread"]


def program(name: str) -> Path:
    """The path of the compiled workload, built now if it is not up to date."""
    return compiled(name, COMMAND, SOURCES / f"{name}.cc", sorted(SOURCES.glob("*.h")))
