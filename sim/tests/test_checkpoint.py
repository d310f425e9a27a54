"""Checkpoints at a region: a run that starts from one has the counts of a run that does not, to the bit, on
the machine that made it and on any other."""

import json

import pytest

WARM = ("--env", "MAYFLY_REGION=warm")
MEMENTO = (*WARM, "--machine", "memento")


def both(folder, sim, name, *words):
    """Two runs, the second from a checkpoint; their folders."""
    folders = []
    for start in ((), ("--checkpoint",)):
        out = f"{name}{len(start)}"
        done = sim("--out", out, *start, *words)
        assert done.returncode == 0, done.stderr
        folders.append(folder / out)
    return folders


def statistics(folder):
    return (folder / "stats.json").read_text()


@pytest.fixture(scope="module")
def held(folder, sim):
    return both(folder, sim, "held", *MEMENTO, "--", "./held")


def test_a_run_from_a_checkpoint_is_the_run_without(held):
    plain, kept = held
    assert statistics(plain) == statistics(kept)
    counts = json.loads(statistics(kept))
    assert counts["broken_laws"] == []
    assert (counts["memento.allocations"], counts["memento.frees"]) == (8 * 256 / 4, 8 * 256 / 2)
    # The guest's first process has said this before: not in the run that started behind it.
    said = ["@sim ready" in (one / "console").read_text() for one in (plain, kept)]
    assert said == [True, False]


def test_other_machines_start_from_it(folder, sim, held):
    slow = ("--set", "llc.latency_cycles=80")
    plain, kept = both(folder, sim, "slow", *MEMENTO, *slow, "--", "./held")
    assert statistics(plain) == statistics(kept) != statistics(held[1])


def test_programs_of_the_baseline_have_one(folder, sim):
    plain, kept = both(folder, sim, "warm", *WARM, "--", "./warm")
    assert statistics(plain) == statistics(kept)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--checkpoint -- ./warm", "--checkpoint: only region first or warm begins behind"),
        ("--checkpoint --cores 2 --env MAYFLY_REGION=warm -- ./warm", "a machine with several cores"),
        ("--checkpoint --env MAYFLY_REGION=warm -- ./buffers 1", "ended before it asked to be timed"),
    ],
)
def test_mistakes_get_one_line(sim, words, expected):
    done = sim(*words.split())
    assert done.returncode not in (0, 3)
    [line] = done.stderr.strip().splitlines()
    assert expected in line
