"""Semantics of advised memory (programs/anonymous_semantics.c), under every installed allocator: zeros after
MADV_DONTNEED, blocks that grow, calloc."""

import pytest
from allocators import ALLOCATORS, AT_ONCE, preloaded


def run(built, store, case, preload=None):
    more = AT_ONCE | ({"LD_PRELOAD": str(preload)} if preload else {})
    print(built.run(store.socket, "anonymous_semantics", case, **more).stdout.strip())
    store.rested(case)


@pytest.mark.parametrize("case", ["dropping", "growing", "moving", "protecting", "forking", "files"])
def test_anonymous_semantics(built, store, case):
    run(built, store, case)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_allocator(built, store, allocator):
    preload = preloaded(built, allocator)
    if preload and not preload.exists():
        pytest.skip(f"no {preload}")
    run(built, store, "allocator", preload)
