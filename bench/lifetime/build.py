"""Compiles the workloads' servers and load generators."""

import re
from collections.abc import Mapping
from pathlib import Path

from bench.compiled import compiled
from bench.heap.server import tool
from bench.outcome import ROOT, BenchError
from bench.processes import ask

SOURCES = Path(__file__).parent / "servers"
SHARED = ROOT / "bench" / "heap" / "workloads"
COMMAND = ["g++", "-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{SHARED}"]


def program(name: str) -> Path:
    """The path of the compiled program, built now if it is not up to date."""
    reads = [*sorted(SOURCES.glob("*.h")), SHARED / "report.h"]
    return compiled(name, [*COMMAND, *library_flags(name)], SOURCES / f"{name}.cc", reads)


def image_server_of(folder: Path, compiler: str, options: list[str], changes: Mapping[str, str]) -> Path:
    """The image server built otherwise, in the folder: of changed source, by other options."""
    source = (SOURCES / "image_server.cc").read_text()
    for before, after in changes.items():
        if before not in source:
            raise BenchError(f"image_server.cc has no '{before}', which a revision changes")
        source = source.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    path, program = folder / "image_server.cc", folder / "image_server"
    path.write_text(source)
    command = [compiler, *COMMAND[1:], *options, f"-I{SOURCES}", *library_flags("image"), "-o", program, path]
    ask(command, f"{folder.name}: does not compile")
    return program


def watcher() -> Path:
    """The library that records an allocator's live bytes."""
    return compiled("libwatch.so", [*COMMAND, "-shared", "-fPIC"], SOURCES / "watch.cc")


def library_flags(name: str) -> list[str]:
    """The libraries come before the source here, so the linker must keep them all."""
    if name.startswith("image"):
        return ["-Wl,--no-as-needed", *package("vips-cpp")]
    if name.startswith("inference"):
        return ["-Wl,--no-as-needed", "-isystem/usr/include/opencv4", "-lopencv_dnn", "-lopencv_core"]
    return []


def package(name: str) -> list[str]:
    """Compiler flags of a library, by pkg-config; its headers' warnings are not ours."""
    flags = ask([tool("pkg-config"), "--cflags", "--libs", name], f"run 'make setup': {name}").split()
    return [re.sub("^-I", "-isystem", flag) for flag in flags]
