"""Rows of a result file have their commits, and those older than the code are named (bench/history.py)."""

import argparse
import json
import subprocess

import pytest

from bench import history, outcome
from bench.lifetime import __main__ as lifetime
from bench.lifetime.process import AtEnd, Memory
from bench.lifetime.workloads import Run
from bench.outcome import BenchError, read


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A history of its own; returns a function that commits a file and returns the commit."""
    monkeypatch.setattr(history, "ROOT", tmp_path)
    monkeypatch.setattr(history, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()

    def run(*command):
        named = ["-c", "user.name=one", "-c", "user.email=one@localhost"]
        return subprocess.run(
            ["git", "-C", tmp_path, *named, *command], check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        run("add", ".")
        run("commit", "-qm", name)
        return run("rev-parse", "--short", "HEAD")

    run("init", "-q")
    commit.folder = tmp_path
    return commit


def test_a_row_is_older_once_its_sources_change(repository):
    commit = repository("heap/src/lib.rs", "one")
    flat = {"image.online.commit": commit, "image.online.date": "2026-01-01", "image.online.rounds": 1}
    flat |= {"repository.other.commit": "not a row: it has no date"}
    assert history.older(flat, ["heap", "train"]) == {}
    repository("heap/tests/one.rs", "two")
    repository("heap/README.md", "two")
    assert history.older(flat, ["heap", "train"]) == {}
    repository("heap/src/lib.rs", "two")
    assert history.older(flat, ["heap", "train"]) == {"image.online": (commit, ["heap"])}


def test_results_that_are_kept_are_of_a_commit(repository):
    repository("heap/src/lib.rs", "one")
    (repository.folder / "results/lifetime.json").write_text("{}")
    history.refuse_changes(repository.folder / "results/lifetime.json", ["heap"])
    (repository.folder / "heap/src/new.rs").write_text("two")
    history.refuse_changes(repository.folder / "trial.json", ["heap"])
    with pytest.raises(BenchError, match=r"heap/src/new\.rs has changes: commit them"):
        history.refuse_changes(repository.folder / "results/lifetime.json", ["heap"])


def comparison(output, **more):
    options = {"only": ["pipeline"], "variants": ["online"], "resume": False, "quick": False, "rounds": 1}
    return lifetime.Comparison(argparse.Namespace(**options | more, output=output))


def test_a_run_keeps_the_rows_of_other_variants_with_their_commits(repository):
    first = repository("heap/src/lib.rs", "one")
    output = repository.folder / "lifetime.json"
    run = Run({"requests_per_s": 1.0}, Memory(), AtEnd(10.0, 20.0, 5.0, 4.0), {})
    whole = comparison(output, variants=[])
    for variant in ("online", "tcmalloc_returning"):
        whole.results.add("pipeline", variant, run)
    whole.write()
    second = repository("heap/src/lib.rs", "two")
    again = comparison(output)
    again.results.add("pipeline", "online", run)
    again.write()
    kept = read(output)
    assert kept["pipeline.online.commit"] == second
    assert kept["pipeline.tcmalloc_returning.commit"] == first
    assert kept["pipeline.tcmalloc_returning.end_ranges_mib"] == 20
    assert kept["pipeline.online.rounds"] == 1 and kept["pipeline.online.load"] >= 0
    assert "pipeline.llama.commit" not in kept


def test_resume_measures_again_rows_that_are_older_than_the_code(repository, capfd):
    commit = repository("heap/src/lib.rs", "one")
    output = repository.folder / "lifetime.json"
    run = Run({"requests_per_s": 1.0}, Memory(), AtEnd(10.0, 20.0, 5.0, 4.0), {})
    whole = comparison(output, variants=[])
    whole.results.add("pipeline", "online", run)
    whole.write()
    assert comparison(output, resume=True).workloads == []
    repository("heap/src/lib.rs", "two")
    assert comparison(output, resume=True).workloads == ["pipeline"]
    assert f"pipeline.online is of {commit}, and older than heap" in capfd.readouterr().err


def test_a_result_elsewhere_is_one_file(tmp_path, monkeypatch):
    flat = {"memory.text.plain.2.private_mib": 3.5, "took_s_min": 1.0, "took_s": 2.0}
    kept, elsewhere = tmp_path / "results" / "worker.json", tmp_path / "worker.json"
    monkeypatch.setattr(outcome, "RESULTS", tmp_path / "results")
    for output in (kept, elsewhere):
        outcome.write(output, flat)
        assert outcome.read(output) == flat
    assert json.loads(elsewhere.read_text()) == flat
    assert json.loads(kept.read_text()) == {"took_s": 2.0}
