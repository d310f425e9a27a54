"""A trace of `mayfly trace` on the allocator units, without a guest."""

import json
import struct

import pytest

HEADER = struct.Struct("<8sIIII Q 32x")
RECORD = struct.Struct("<QQQQIIII")


@pytest.fixture(scope="module")
def trace(folder):
    """3000 objects of 24 to 600 bytes, of which each but the last hundred is freed."""
    text = HEADER.pack(b"MAYFLYTR", 1, RECORD.size, 7, 2, 0)
    for number in range(3000):
        size = 24 + number * 37 % 577
        text += RECORD.pack(2 * number, 0x10000 + 4096 * number, size, 0x400000, 0, number, 1, 0)
        if number >= 100:
            text += RECORD.pack(2 * number + 1, 0x10000 + 4096 * (number - 100), 0, 0, 0, 0, 2, 0)
    (folder / "made.trace").write_bytes(text)
    return text


def test_a_trace_runs_on_every_unit(folder, sim, trace):
    cycles = {}
    for allocator in ("native", "memento", "mallacc", "speedmalloc"):
        done = sim("--replay", "made.trace", "--allocator", allocator, "--json", "--out", f"on-{allocator}")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["broken_laws"] == [] and found["machine"]
        assert (found["replay.allocations"], found["replay.frees"]) == (3000, 2900)
        assert json.loads((folder / f"on-{allocator}/stats.json").read_text()) == found
        cycles[allocator] = found["cycles"]
    assert max(cycles["memento"], cycles["mallacc"]) < cycles["native"]
    assert len(set(cycles.values())) == 4


def test_both_sides_at_once(sim, trace):
    done = sim("--replay", "made.trace", "--compare")
    assert done.returncode == 0 and "cycles" in done.stderr, done.stderr


def test_mistakes_get_one_line(folder, sim, trace):
    (folder / "broken.trace").write_bytes(trace[:64] + b"\xff" * 48)
    for words, expected in (
        (("--replay", "missing.trace"), "missing.trace"),
        (("--replay", "broken.trace"), "only 1 (allocation) and 2 (free) exist"),
        (("--replay", "made.trace", "--allocator", "mayfly"), "mayfly is software"),
        (("--replay", "made.trace", "--cores", "2"), "replayed on one core"),
    ):
        done = sim(*words)
        assert done.returncode not in (0, 3)
        [line] = done.stderr.strip().splitlines()
        assert expected in line
