"""How old a measurement is: the commit that was measured, and the sources that have changed since.

A result file has rows, which are measured one by one. Each row has its own `commit`, `date`, `load` and
`rounds` beside its numbers: `image.model.commit` for `image.model.end_resident_mib`.
"""

import os
import subprocess
import tomllib
from datetime import date
from pathlib import Path

from bench.outcome import RESULTS, ROOT, BenchError

ABOUTS = ROOT / "bench" / "tables" / "results.toml"
WITHOUT = (":(exclude,glob)**/*.md", ":(exclude,glob)**/tests/**")
STAMPS = ("commit", "date", "load", "rounds")


def git(*command: str) -> str | None:
    ran = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else None


def sources_of(name: str) -> list[str]:
    """The folders that a result file measures."""
    return tomllib.loads(ABOUTS.read_text())[name]["sources"]


def is_known(commit: str) -> bool:
    return bool(commit) and git("cat-file", "-e", f"{commit}^{{commit}}") is not None


def changed_since(commit: str, sources: list[str]) -> list[str]:
    """Those of the folders that have changed since a commit: all if it is not in the history."""
    if not is_known(commit):
        return list(sources)
    changed = lambda folder: git("log", "-1", "--format=%h", f"{commit}..HEAD", "--", folder, *WITHOUT)  # noqa: E731
    return list(filter(changed, sources))


def refuse_changes(output: Path, sources: list[str]) -> None:
    """Raises BenchError if a row of the results that are kept would have no commit: sources have changes."""
    if output.resolve().parent != RESULTS:
        return
    changes = git("status", "--porcelain", "--", *sources, *WITHOUT)
    if changes:
        first = changes.splitlines()[0].split()[-1]
        raise BenchError(f"{first} has changes: commit them, or write to another file (--output)")


def stamp(rounds: int) -> dict[str, object]:
    """What a row that was measured now has beside its numbers."""
    commit = git("describe", "--always", "--dirty", "--exclude", "*") or "unknown"
    load = round(os.getloadavg()[1], 1)  # of five minutes, the run itself included
    return {"commit": commit, "date": date.today().isoformat(), "load": load, "rounds": rounds}


def row_of(key: str) -> str:
    """The row of a key: its first two parts."""
    return ".".join(key.split(".")[:2])


def rows(flat: dict) -> dict[str, str]:
    """The commit of each row that has one."""
    ends = ".commit"
    found = {key.removesuffix(ends): str(value) for key, value in flat.items() if key.endswith(ends)}
    return {row: commit for row, commit in found.items() if f"{row}.date" in flat and row != "machine"}


def older(flat: dict, sources: list[str]) -> dict[str, tuple[str, list[str]]]:
    """The rows that are older than what they measure: the commit, and the folders that have changed since."""
    found = {}
    for row, commit in rows(flat).items():
        if changed := changed_since(commit.removesuffix("-dirty"), sources):
            found[row] = (commit, changed)
    return found
