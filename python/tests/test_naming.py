"""In an instance of a worker memory is only registered: the worker shares it later."""

import mmap
import os

import mayfly
import numpy
import pytest
from mayfly import library, naming
from mayfly.regions import Region


@pytest.fixture
def in_worker(monkeypatch):
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


def test_advise_registers_each_page_once(in_worker):
    table = numpy.arange(1 << 20)
    for _ in range(3):
        assert mayfly.advise(table) == pages_of(table).size_bytes
    assert naming.named == [pages_of(table)]
    assert mayfly.advise(table, background=True).wait() == pages_of(table).size_bytes
    mayfly.unadvise(table[: 1 << 19])
    assert naming.named == [Region(pages_of(table[: 1 << 19]).end, pages_of(table).end)]


def test_advising_registers_memory_allocated_in_the_block(in_worker):
    with mayfly.advising() as advised:
        table = numpy.full(1 << 20, 7)
    assert any(
        region.start <= pages_of(table).start and pages_of(table).end <= region.end for region in advised
    )
    assert sum(region.size_bytes for region in naming.named) == sum(region.size_bytes for region in advised)


def test_advise_process_registers_all_memory(in_worker):
    assert mayfly.advise_process() > 0
    table = numpy.arange(1 << 20)  # later memory, too
    assert naming.named[0].start <= table.ctypes.data < naming.named[0].end


def test_a_child_shares_at_once(in_worker):
    child = os.fork()
    if child == 0:
        os._exit(naming.defers_sharing())
    assert os.waitpid(child, 0)[1] == 0
    assert naming.defers_sharing()
