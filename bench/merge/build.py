"""Compiles the region program into target/bench, again only when its source, the header or the command
changed."""

import hashlib
import subprocess
from pathlib import Path

from bench.merge.machine import BUILD, ROOT, BenchError

SOURCE = Path(__file__).parent / "workloads" / "region.c"
HEADER = ROOT / "merge" / "include" / "mayfly_merge.h"
COMMAND = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]


def region_program() -> Path:
    """The path of the compiled program, built now if it is not up to date."""
    output, stamp = BUILD / "merge-region", BUILD / "merge-region.made-from"
    text = " ".join(COMMAND).encode() + SOURCE.read_bytes() + HEADER.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    if output.exists() and stamp.exists() and stamp.read_text() == digest:
        return output
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        made = subprocess.run([*COMMAND, "-o", output, SOURCE, "-ldl"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError("gcc is not installed: run 'make setup'") from error
    if made.returncode:
        raise BenchError(f"{SOURCE}: does not compile:\n{made.stderr}")
    stamp.write_text(digest)
    return output
