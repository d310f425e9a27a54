"""Compiles the workloads' servers and load generators."""

import subprocess
from pathlib import Path

from bench.compiled import compiled
from bench.outcome import ROOT, BenchError

SOURCES = Path(__file__).parent / "servers"
SHARED = ROOT / "bench" / "heap" / "workloads"
COMMAND = ["g++", "-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{SHARED}"]


def program(name: str) -> Path:
    """The path of the compiled program, built now if it is not up to date."""
    reads = [*sorted(SOURCES.glob("*.h")), SHARED / "report.h"]
    return compiled(name, [*COMMAND, *library_flags(name)], SOURCES / f"{name}.cc", reads)


def watcher() -> Path:
    """The library that says what an allocator has live."""
    return compiled("libwatch.so", [*COMMAND, "-shared", "-fPIC"], SOURCES / "watch.cc")


def library_flags(name: str) -> list[str]:
    """The libraries come before the source here, so the linker is to keep them all."""
    if name.startswith("image"):
        return ["-Wl,--no-as-needed", *package("vips-cpp")]
    if name.startswith("inference"):
        return ["-Wl,--no-as-needed", "-isystem/usr/include/opencv4", "-lopencv_dnn", "-lopencv_core"]
    return []


def package(name: str) -> list[str]:
    """Compiler flags of a library, by pkg-config; its headers' warnings are not ours."""
    try:
        made = subprocess.run(["pkg-config", "--cflags", "--libs", name], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError("pkg-config is not installed: run 'make setup'") from error
    if made.returncode:
        raise BenchError(f"{name} is not installed: run 'make setup' (bench/lifetime/packages.txt names it)")
    return [
        flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag for flag in made.stdout.split()
    ]
