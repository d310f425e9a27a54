"""What other threads do with memory at the very moment at which it is advised (programs/moment.c)."""

import subprocess

import pytest
from store import check, status_text

CASES = ["dropping", "growing", "growing again", "reallocating", "many times", "droppers"]


@pytest.mark.parametrize("case", CASES)
def test_moment(built, store, case):
    late = built.program("late", "-shared", "-fPIC")
    done = subprocess.run(
        [built.program("moment"), case],
        env=built.environment(store.socket, LD_PRELOAD=str(late)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    check(done.returncode == 0, f"{status_text(done.returncode)}: {done.stderr.strip()[-300:]}")
    store.alive(f"after `{case}`")
    store.empty(f"after `{case}`")
    print(done.stdout.strip())
