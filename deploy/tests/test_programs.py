"""What deploy/programs chooses and compares."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SMOKE = Path(__file__).resolve().parents[1] / "smoke"
sys.path.insert(0, str(SMOKE))
import autopkgtests  # noqa: E402
import compare  # noqa: E402
import inside  # noqa: E402
import pypi  # noqa: E402
import ranking  # noqa: E402


def ran(output, errors="", status=0):
    return compare.Run(status, (output.splitlines(), errors.splitlines()))


PLAIN = [ran("pid 12\nsame\n"), ran("pid 13\nsame\n")]


def test_lines_that_differ_between_plain_runs_are_not_compared():
    assert compare.difference(PLAIN, ran("pid 14\nsame\n")) == ""


def test_another_line_one_too_few_and_another_end_are_differences():
    assert "line 2: 'other' instead of 'same'" in compare.difference(PLAIN, ran("pid 14\nother\n"))
    assert "line 2: '(no line)' instead of 'same'" in compare.difference(PLAIN, ran("pid 14\n"))
    assert "errors, line 1" in compare.difference(PLAIN, ran("pid 14\nsame\n", "warning\n"))
    assert "ends with 134 instead of 0" in compare.difference(PLAIN, ran("pid 14\nsame\n", status=134))


def test_a_difference_counts_if_it_comes_again_and_not_plainly(monkeypatch):
    def results_of(*runs):
        left = iter(runs)
        monkeypatch.setattr(compare, "run", lambda *_: next(left))
        return compare.compared("x", {"LD_PRELOAD": "y"}, 1).outcome

    assert results_of(ran("a"), ran("a"), ran("a")) == "same"
    assert results_of(ran("a"), ran("a"), ran("b"), ran("b"), ran("c")) == "same"  # differs plainly, too
    assert results_of(ran("a"), ran("a"), ran("b"), ran("a"), ran("b"), ran("a")) == "failure"
    assert results_of(ran("a", status=124)) == "left out"


def test_a_system_in_which_nothing_runs_or_nothing_is_preloaded_is_refused(monkeypatch):
    for always in (ran("", status=125), ran("0\n")):
        monkeypatch.setattr(compare, "run", lambda *_, always=always: always)
        with pytest.raises(SystemExit, match="should say"):
            compare.check({"LD_PRELOAD": "y"})


def test_packages_with_most_dependents_come_first():
    packages = [{"Depends": "libc6 (>= 2.3), perl | awk"}, {"Recommends": "perl"}, {"Pre-Depends": "dpkg"}]
    assert ranking.dependents(packages) == {"perl": 2, "libc6": 1, "awk": 1, "dpkg": 1}


def test_packages_with_a_job_come_first_and_others_have_their_reason():
    order = [("many", ["one", "two", "yes"]), ("few", ["three"])]
    left_out = {
        "packages": {},
        "programs": {"yes": "writes without end"},
        "commands": {"two --help": "as asked"},
    }
    jobs = {"three": "three job", "absent": "absent job"}
    groups = [
        (package, [command.words for command in kept], [command.words for command in left])
        for package, kept, left in inside.chosen(order, jobs, left_out)
    ]
    assert groups == [
        ("few", ["three job", "three --version", "three --help"], []),
        (
            "many",
            ["one --version", "one --help", "two --version"],
            ["two --help", "yes --version", "yes --help"],
        ),
        ("", [], ["absent job"]),
    ]


def test_tests_that_need_a_machine_or_a_network_are_left_out():
    control = (
        "Tests: a, b\nDepends: @\n\n# a comment\nTests: c\nRestrictions: needs-internet\n\n"
        "Tests: d\nRestrictions: allow-stderr superficial\n\nTest-Command: true\n"
    )
    assert autopkgtests.suitable(control) == ["a", "b", "d"]


def test_results_are_found_again(tmp_path):
    results = inside.Results(tmp_path / "results")
    results.add("a", "p", "a --help", compare.Verdict("same"))
    assert inside.Results(tmp_path / "results").of("same", "program") == {"a"}


def test_debians_part_of_a_source_is_enough_where_a_mirror_lacks_the_rest(monkeypatch, tmp_path):
    def apt(*words, cwd=None, **_):
        if words[0] == "tar":
            return subprocess.run(words, check=False)
        if "--diff-only" not in words:
            return subprocess.CompletedProcess(words, 100, "", "404")
        (tmp_path / "debian/tests").mkdir(parents=True)
        (tmp_path / "debian/tests/control").write_text("Tests: a\n")
        subprocess.run(["tar", "-cJf", cwd / "p_1-1.debian.tar.xz", "debian"], cwd=tmp_path, check=True)
        return subprocess.CompletedProcess(words, 0, "", "")

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(autopkgtests, "quiet", apt)
    folder, _ = autopkgtests.fetched("p", scratch)
    assert autopkgtests.suitable((folder / "debian/tests/control").read_text()) == ["a"]


def test_jobs_of_pypi_are_named_with_the_versions_that_ran(monkeypatch, tmp_path):
    jobs = tomllib.loads((SMOKE / "pypi.toml").read_text())["jobs"]
    assert all(set(job) == {"packages", "run"} for job in jobs.values())
    monkeypatch.setattr(pypi, "PLACE", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/pip").touch()
    cannot = {"scipy": "pip cannot install it"}
    monkeypatch.setattr(pypi, "installed", lambda packages: cannot.get(packages[0], ""))
    monkeypatch.setattr(pypi, "versions", lambda: {"numpy": "2.4"})
    monkeypatch.setattr(pypi, "compared", lambda *_: compare.Verdict("same"))
    results = inside.Results(tmp_path / "results")
    pypi.compare(results, 2, {})
    told = [(one["package"], one["outcome"], one["why"]) for one in results.known.values()]
    assert told == [("pypi:numpy", "same", "numpy 2.4"), ("pypi:scipy", "left out", cannot["scipy"])]
