"""Semantics of advised memory (programs/anonymous_semantics.c), under every installed allocator: zeros after
every advice that empties memory, blocks that grow, calloc. Guards among advised pages (programs/guards.c)."""

import re

import pytest
from allocators import ALLOCATORS, AT_ONCE, preloaded


def run(built, store, case, preload=None):
    more = AT_ONCE | ({"LD_PRELOAD": str(preload)} if preload else {})
    finish(store, built.run(store.socket, "anonymous_semantics", case, **more), case)


def finish(store, done, case):
    store.rested(case)
    if done.stdout.startswith("skip: "):
        pytest.skip(done.stdout[6:].strip())
    print(done.stdout.strip())


CASES = [
    "dropping",
    "dropping by others",
    "guarding",
    "growing",
    "moving",
    "protecting",
    "forking",
    "files",
]


@pytest.mark.parametrize("case", CASES)
def test_anonymous_semantics(built, store, case):
    run(built, store, case)


@pytest.mark.parametrize("case", ["written", "untouched", "poisoned", "after", "file"])
def test_markers_are_no_memory(built, store, case):
    finish(store, built.run(store.socket, "guards", case), case)


@pytest.mark.parametrize(
    "case",
    [
        "moves",
        "with a hole",
        "sealed",
        "sealed unreadable",
        *(f"without mappings {left}" for left in (0, 2, 5, 12, 20, 40)),
    ],
)
def test_mremap_moves_all_or_nothing(built, store, case):
    name, left = re.fullmatch(r"(.*?)(?: (\d+))?", case).groups()
    finish(store, built.run(store.socket, "moves", name, *([left] if left else [])), case)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_allocator(built, store, allocator):
    preload = preloaded(built, allocator)
    if preload and not preload.exists():
        pytest.skip(f"no {preload}")
    run(built, store, "allocator", preload)
