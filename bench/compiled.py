"""Compiles a program into target/bench, again only when its sources or the command changed."""

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bench.outcome import ROOT, BenchError

BUILD = ROOT / "target" / "bench"


def compiled(name: str, command: list[str], source: Path, also_reads: Iterable[Path] = ()) -> Path:
    """The path of the program, built now if it is not up to date. `command`: compiler and flags."""
    output, stamp = BUILD / name, BUILD / f"{name}.made-from"
    text = " ".join(command).encode() + b"".join(path.read_bytes() for path in [source, *also_reads])
    digest = hashlib.sha256(text).hexdigest()
    if output.exists() and stamp.exists() and stamp.read_text() == digest:
        return output
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        made = subprocess.run([*command, "-o", output, source, "-ldl"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError(f"{command[0]} is not installed: run 'make setup'") from error
    if made.returncode:
        raise BenchError(f"{source}: does not compile:\n{made.stderr}")
    stamp.write_text(digest)
    return output
