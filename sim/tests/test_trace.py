"""Traces for ChampSim, read by a reader of this file's own: instructions, branches and addresses are those
that the run has counted."""

import json
import lzma
import struct

RECORD = struct.Struct("<QBB2s4s2Q4Q")
FLAGS, NEXT = 25, 26


def records(path):
    read = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    assert len(read) % RECORD.size == 0 and RECORD.size == 64
    return list(RECORD.iter_unpack(read))


def test_a_trace_agrees_with_the_counts(folder, sim):
    done = sim("--trace", "churn.xz", "--out", "traced", "--", "./churn", "2000")
    assert done.returncode == 3, done.stderr
    counted = json.loads((folder / "traced/stats.json").read_text())
    assert counted["broken_laws"] == []
    found = records(folder / "churn.xz")
    assert len(found) == counted["trace.records"]
    assert len(found) == counted["instructions"] + counted["trace.repetitions"]
    user = sum(ip >> 63 == 0 for ip, *_ in found)
    assert user - counted["trace.repetitions"] <= counted["user_instructions"] <= user
    accesses = sum(address != 0 for one in found for address in one[5:])
    assert accesses + counted["trace.left_out_accesses"] == counted["loads"] + counted["stores"]
    # Behind a conditional branch that was not taken there is no other instruction than the next one, and no
    # interrupt or fault has come between in nearly all cases.
    conditional = [
        (one, after)
        for one, after in zip(found, found[1:], strict=False)
        if NEXT in one[3] and FLAGS in one[4] and NEXT in one[4]
    ]
    assert abs(len(conditional) / counted["branch.conditional"] - 1) < 0.001
    directions = {0: [], 1: []}
    for one, after in conditional:
        directions[one[2]].append(2 <= after[0] - one[0] <= 7)
    assert sum(directions[0]) > 0.99 * len(directions[0]) > 1000
    # Some are taken to a place as near.
    assert sum(directions[1]) < 0.05 * len(directions[1])


def test_a_trace_changes_no_count_and_may_be_plain(folder, sim):
    for words in ((), ("--trace", "limited.champsim")):
        out = f"limited{len(words)}"
        done = sim("--max-instructions", "100000", "--out", out, *words, "--", "./churn", "9")
        assert done.returncode in (0, 3), done.stderr
    plain, traced = (json.loads((folder / f"limited{many}/stats.json").read_text()) for many in (0, 2))
    assert plain == {key: value for key, value in traced.items() if not key.startswith("trace.")}
    assert len(records(folder / "limited.champsim")) == traced["trace.records"] >= 100_000


def test_mistakes_get_one_line(sim):
    for words, expected in (
        (("--trace", "no/such/folder/x.xz"), "--trace"),
        (("--trace", "x", "--cores", "2"), "ChampSim's traces are of one core"),
    ):
        done = sim(*words, "--", "./churn", "9")
        assert done.returncode not in (0, 3)
        [line] = done.stderr.strip().splitlines()
        assert expected in line
