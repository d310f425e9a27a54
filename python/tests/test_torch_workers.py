"""bench/merge's workers with one model: which pages count as which, its tables and goals; and two real
workers, where the environment has PyTorch and transformers (`bench/merge/run --prepare`)."""

import importlib.util
import mmap
import os
import sys

import pytest

from bench.merge import environment, goals, private_pages, tables, torch_workers
from bench.outcome import BenchError

SMAPS = """555555000000-555555001000 r-xp 00000000 fe:01 12 /usr/bin/python3.11
Rss:                   4 kB
Anonymous:             0 kB
7ffff0000000-7ffff0400000 rw-p 00000000 00:00 0
Anonymous:          2048 kB
7ffff0400000-7ffff0800000 rw-p 00000000 00:00 0 [heap]
Anonymous:          1024 kB
7ffff1000000-7ffff1400000 r--p 00100000 fe:01 99 /usr/lib/a folder/libtorch_cpu.so
Anonymous:           512 kB
7ffff2000000-7ffff2400000 rw-p 00000000 00:01 31 /memfd:mayfly-pages (deleted)
Anonymous:           256 kB
7ffff3000000-7ffff3400000 rw-s 00000000 fe:01 98 /tmp/shared
Anonymous:             0 kB
7ffffff00000-7ffffff80000 rw-p 00000000 00:00 0 [stack]
Anonymous:            64 kB
VmFlags: rd wr mr mw me gd ac
"""


def test_private_pages_by_kind():
    found = private_pages.by_kind(SMAPS)
    assert found == {
        "anonymous": 2.0, "heap": 1.0, "libraries": 0.5, "written": 0.25, "stack": 0.0625, "other": 0.0
    }  # fmt: skip


def test_private_pages_of_a_process(tmp_path):
    """Unwritten pages of a file are none, in a private mapping as in a shared one."""
    size = 8 << 20
    file = tmp_path / "weights"
    file.write_bytes(b"w" * size)
    before = private_pages.of_processes([os.getpid()])
    anonymous = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, mmap.PAGESIZE):
        anonymous[at] = 1
    with file.open("r+b") as opened:
        private = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_PRIVATE)
        shared = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_SHARED)
    for at in range(0, size, mmap.PAGESIZE):
        assert private[at] == shared[at] == ord("w")
    for at in range(0, size // 4, mmap.PAGESIZE):
        private[at] = ord("p")
    after = private_pages.of_processes([os.getpid()])
    grown = {kind: after[kind] - before[kind] for kind in private_pages.KINDS}
    assert 8 <= grown["anonymous"] < 12  # and what Python itself takes meanwhile
    assert grown["libraries"] == 2


class Given:
    """A worker that gives these answers."""

    name = "bert process"

    def __init__(self, *answers):
        self.answers = answers

    def ask(self, text):
        assert text == f"ask 3 {len(self.answers)}\n"
        return {"answers": self.answers, "ms": [1.0] * len(self.answers)}


def test_another_answer_ends_the_run():
    answers = {}
    assert torch_workers.asked(Given("a", "b"), 3, 2, answers) == [1.0, 1.0]
    assert torch_workers.asked(Given("a", "b", "c"), 3, 3, answers) and answers == {3: "a", 4: "b", 5: "c"}
    with pytest.raises(BenchError, match="another answer to request 4"):
        torch_workers.asked(Given("a", "c"), 3, 2, answers)


class Timed:
    """A worker whose every request takes so long."""

    name = "bert process"

    def __init__(self, ms):
        self.ms, self.asked = ms, []

    def ask(self, text):
        first, count = map(int, text.split()[1:])
        self.asked += range(first, first + count)
        return {"answers": [f"answer {first + at}" for at in range(count)], "ms": [self.ms] * count}


def test_a_plain_worker_is_asked_in_turn():
    workers, beside, answers = [Timed(30.0), Timed(30.0), Timed(50.0)], Timed(20.0), {}
    found = torch_workers.in_turn(workers, beside, 2 * torch_workers.BATCH, answers)
    assert found == {"p50_ms": 30.0, "beside_ms": 20.0, "p50_ratio": 1.5}
    requests = list(range(1, 2 * torch_workers.BATCH + 1))
    assert all(worker.asked == requests for worker in workers) and list(answers) == requests
    assert len(beside.asked) == len(workers) * len(requests)


def test_a_round_is_compared_with_its_own_plain_fleet(monkeypatch):
    taken = iter([1000.0, 800.0, 300.0, 2000.0, 1000.0, 1000.0])

    def measured(model, method, count, requests, answers):
        mib = next(taken)
        return {"system_mib": mib, "own_mib": mib - 100}

    monkeypatch.setattr(torch_workers, "measured", measured)
    monkeypatch.setattr(environment, "model_files", lambda: None)
    found = torch_workers.compare("bert", 8, 20, 2)
    assert found["rounds"] == 2 and found["plain.system_ratio"] == 1
    assert found["process.system_ratio"] == 0.4 and found["advise.system_mib"] == 900
    assert (found["process.system_ratio_min"], found["process.system_ratio_max"]) == (0.3, 0.5)
    assert found["process.own_ratio_min"] == 200 / 900


def results(ratio):
    flat = {"torch.bert.workers": 8}
    for method in torch_workers.METHODS:
        part = 1 if method == "plain" else ratio
        flat |= {f"torch.bert.{method}.system_mib": 4000 * part, f"torch.bert.{method}.system_ratio": part}
        flat |= {f"torch.bert.{method}.p50_ms": 25.0, f"torch.bert.{method}.p50_ratio": 1.01}
        flat |= {f"torch.bert.{method}.files_mib": 123.0, f"torch.bert.{method}.private.libraries_mib": 77.0}
    return flat


def test_tables_have_a_row_for_each_method(capsys):
    tables.print_all(results(0.25))
    printed = capsys.readouterr().out
    assert "bert, 8 workers" in printed and "resnet50" not in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("  packed and advised")]
    assert [row[3] for row in rows] == ["1000", "123"] and "0.25" in rows[0] and "77" in rows[1]


@pytest.mark.parametrize(("ratio", "met"), [(0.7, True), (0.71, False)])
def test_goal_is_seven_tenths_of_plains_memory(ratio, met):
    found = goals.shown(results(ratio))
    assert [(one.met, one.wanted) for one in found] == [(met, "<= 0.7x"), (True, "<= 1.02x")]


def test_two_real_workers(tmp_path, monkeypatch):
    for needed in ("torch", "transformers"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"no {needed} in this environment: 'bench/merge/run --prepare' makes one that has it")
    from bench.merge.model import bert

    bert.prepare(tmp_path / "bert", words=4000, layers=4)
    monkeypatch.setattr(environment, "python", lambda: sys.executable)
    monkeypatch.setattr(environment, "model_files", lambda: tmp_path)
    found = torch_workers.compare("bert", 2, torch_workers.BATCH, 1)
    assert found["answers"] == 1 + torch_workers.BATCH  # requests, each with one answer
    for method in torch_workers.METHODS:
        assert found[f"{method}.p50_ms"] > 0 and found[f"{method}.files_mib"] > 0
    # Of two workers' memory half is left at best.
    assert found["process.system_ratio"] < 0.9 and found["process.store_mib"] > 100
    assert found["process.system_ratio"] < found["advise.system_ratio"] < 1.05
