"""The page store that tests run against."""

import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("MAYFLY_COMMAND") or ROOT / "target" / "release" / "mayfly")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A `mayfly share`; gives the variables with which programs find it."""
    if not COMMAND.exists():
        pytest.fail(f"{COMMAND} is not built: run 'make build'")
    socket = tmp_path_factory.mktemp("store") / "share.sock"
    process = subprocess.Popen([COMMAND, "share", "--socket", socket], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not socket.exists():
        assert process.poll() is None and time.monotonic() < deadline, "mayfly share did not start"
        time.sleep(0.01)
    yield {"MAYFLY_SHARE_SOCKET": str(socket), "MAYFLY_MERGE_PATH": "engine"}
    process.terminate()
    assert process.wait(20) == 0
