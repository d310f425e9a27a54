"""In an instance that rests memory is only named: the worker shares it later."""

import mmap
import os

import mayfly
import numpy
import pytest
from mayfly import library, naming
from mayfly.regions import Region


@pytest.fixture
def resting(monkeypatch):
    monkeypatch.setenv("MAYFLY_RESTING_PROCESS", str(os.getpid()))
    monkeypatch.setattr(naming, "named", [])
    calls = []
    monkeypatch.setattr(library, "advise_all", lambda *taken: calls.append(taken))
    yield calls
    assert not calls, "something was shared on the way"


def pages_of(array):
    start = array.ctypes.data
    return Region(
        -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    )


def test_what_is_advised_is_named_once(resting):
    table = numpy.arange(1 << 20)
    for _ in range(3):
        assert mayfly.advise(table) == pages_of(table).size_bytes
    assert naming.named == [pages_of(table)]
    assert mayfly.advise(table, background=True).wait() == pages_of(table).size_bytes
    mayfly.unadvise(table[: 1 << 19])
    assert naming.named == [Region(pages_of(table[: 1 << 19]).end, pages_of(table).end)]


def test_a_block_names_what_it_brings_in(resting):
    with mayfly.advising() as brought:
        table = numpy.full(1 << 20, 7)
    assert any(
        region.start <= pages_of(table).start and pages_of(table).end <= region.end for region in brought
    )
    assert sum(region.size_bytes for region in naming.named) == sum(region.size_bytes for region in brought)


def test_a_whole_process_can_be_named(resting):
    assert mayfly.advise_process() > 0
    table = numpy.arange(1 << 20)  # what comes later, too
    assert naming.named[0].start <= table.ctypes.data < naming.named[0].end


def test_a_child_shares_by_itself(resting):
    child = os.fork()
    if child == 0:
        os._exit(naming.is_only_named())
    assert os.waitpid(child, 0)[1] == 0
    assert naming.is_only_named()
