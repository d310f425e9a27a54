"""What memory means after it was advised (programs/meaning.c), under every allocator that is installed:
zeros after MADV_DONTNEED, blocks that grow, calloc."""

import subprocess

import pytest
from allocators import ALLOCATORS, AT_ONCE, preloaded
from store import check, status_text


def run(built, store, case, preload=None):
    more = AT_ONCE | ({"LD_PRELOAD": str(preload)} if preload else {})
    done = subprocess.run(
        [built.program("meaning"), case],
        env=built.environment(store.socket, **more),
        capture_output=True,
        text=True,
        timeout=120,
    )
    check(done.returncode == 0, f"{status_text(done.returncode)}: {done.stderr.strip()[-300:]}")
    store.alive(f"after `{case}`")
    store.empty(f"after `{case}`")
    print(done.stdout.strip())


@pytest.mark.parametrize("case", ["dropping", "growing", "moving", "protecting", "forking", "files"])
def test_meaning(built, store, case):
    run(built, store, case)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_under(built, store, allocator):
    preload = preloaded(built, allocator)
    if preload and not preload.exists():
        pytest.skip(f"no {preload}")
    run(built, store, "allocator", preload)
