"""The machine in a thread of its own counts what it counts in QEMU's, to the bit."""

import json

import pytest


def counted(folder, sim, threads, *words):
    out = f"{words[-2].strip('./')}-{threads}"
    done = sim("--threads", str(threads), "--out", out, *words)
    assert done.returncode in (0, 3), done.stderr
    return (folder / out / "stats.json").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--", "./churn", "20000"),
        # Pages that come and go, and processes with page tables of their own.
        ("--", "./buffers", "60"),
        ("--machine", "memento", "--", "./turns", "-"),
        ("--machine", "memento", "--env", "MAYFLY_REGION=warm", "--checkpoint", "--", "./held", "-"),
        ("--machine", "speedmalloc", "--", "./aligned", "3000"),
        ("--sample=10007", "--huge-pages", "always", "--", "./churn", "20000"),
    ],
    ids=lambda words: " ".join(words),
)
def test_counts_are_the_same(folder, sim, words):
    assert counted(folder, sim, 1, *words) == counted(folder, sim, 2, *words)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_results_of_posix_memalign_are_objects(sim, threads):
    done = sim("--threads", threads, "--json", "--", "./aligned", "3000")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["broken_laws"] == [] and found["objects.allocations"] >= 3000
    # An object whose address is not known has no lifetime.
    assert found["objects.frees"] >= 2900


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_limit_and_a_panic_end_both(folder, sim, threads):
    out = f"ended-{threads}"
    done = sim("--threads", threads, "--max-instructions", "1000000", "--out", out, "--", "./churn", "20000")
    assert done.returncode == 0 and "PARTIAL" in done.stderr, done.stderr
    assert json.loads((folder / out / "stats.json").read_text())["partial"]
    done = sim("--threads", threads, "--out", out, "--", "./panic")
    assert "the guest's kernel panicked: " in done.stderr
    assert json.loads((folder / out / "stats.json").read_text())["instructions"] > 0
