"""Compiles the C++ workloads into target/bench, again only when a source, a header or the command changed."""

import hashlib
import subprocess
from pathlib import Path

from bench.heap.machine import BUILD, BenchError

SOURCES = Path(__file__).parent / "workloads"
# Without -fno-builtin the compiler may remove an allocation and its free together.
COMMAND = ["g++", "-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread"]


def program(name: str) -> Path:
    """The path of the compiled workload, built now if it is not up to date."""
    source = SOURCES / f"{name}.cc"
    output = BUILD / name
    stamp = BUILD / f"{name}.made-from"
    text = " ".join(COMMAND).encode()
    for path in [source, *sorted(SOURCES.glob("*.h"))]:
        text += path.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    if output.exists() and stamp.exists() and stamp.read_text() == digest:
        return output
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        made = subprocess.run([*COMMAND, "-o", output, source, "-ldl"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError("g++ is not installed: run 'make setup'") from error
    if made.returncode:
        raise BenchError(f"{source}: does not compile:\n{made.stderr}")
    stamp.write_text(digest)
    return output
