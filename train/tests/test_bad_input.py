"""A user's mistakes: a failure, and one line that names the file and the next step."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train.__main__ import main
from train.errors import TrainError
from train.tests import synthetic

ROOT = Path(__file__).parents[2]


def refusal(*arguments) -> str:
    with pytest.raises(TrainError) as refused:
        main([str(argument) for argument in arguments])
    [line] = str(refused.value).splitlines()
    return line


def test_the_command_fails_with_one_line(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "train", "none.parquet", "-o", str(tmp_path / "m")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (1, "")
    hint = "name the .parquet file that 'mayfly profile' wrote"
    assert done.stderr.splitlines()[-1] == f"mayfly: none.parquet: no such file: {hint}"


def changed(path: Path, column: str, value) -> Path:
    """A profile with another value in the third row of a column, or without the column if that is `None`."""
    table = pq.read_table(path)
    place = table.column_names.index(column)
    if value is None:
        table = table.remove_column(place)
    else:
        values, kind = table[column].to_pylist(), table[column].type
        values[2] = value
        table = table.set_column(place, column, pa.array(values, None if value == -1 else kind))
    pq.write_table(table, path)
    return path


@pytest.fixture
def profile(tmp_path) -> Path:
    synthetic.write(tmp_path / "p.parquet", synthetic.contexts(100))
    return tmp_path / "p.parquet"


@pytest.mark.parametrize(
    "column, value, words",
    [
        ("stack", None, "no column stack"),
        ("freed_10s", None, "no column freed_10s"),
        ("live", -1, "column live has a value that is not a number of 0 or more"),
        ("allocations", float("nan"), "column allocations has a value that is not a number"),
        ("bytes", float("inf"), "column bytes has a value that is not a number"),
        ("allocations", float("inf"), "column allocations has a value that is not a number"),
        ("live", 2**64 - 1, "cannot be computed: "),
    ],
)
def test_refuses_damaged_tables(profile, column, value, words, tmp_path):
    line = refusal(changed(profile, column, value), "-o", tmp_path / "m")
    assert str(profile) in line and words in line
    assert not (tmp_path / "m").exists()


def test_refuses_text_for_numbers(profile, tmp_path):
    table = pq.read_table(profile)
    place = table.column_names.index("live")
    pq.write_table(table.set_column(place, "live", table["live"].cast(pa.string())), profile)
    assert refusal(profile, "-o", tmp_path / "m").endswith("column live is string, not numbers")


def test_refuses_files_that_are_no_profile(profile, tmp_path):
    assert "no such file" in refusal(tmp_path / "none.parquet", "-o", tmp_path / "m")
    (tmp_path / "text.parquet").write_text("stack,live\n")
    assert "not a Parquet file" in refusal(tmp_path / "text.parquet", "-o", tmp_path / "m")
    whole = profile.read_bytes()
    profile.write_bytes(whole[: len(whole) // 2])
    assert "not a Parquet file, or a damaged one" in refusal(profile, "-o", tmp_path / "m")


def test_refuses_another_version(profile, tmp_path):
    table = pq.read_table(profile)
    pq.write_table(table.replace_schema_metadata({"mayfly.version": "1"}), profile)
    assert refusal(profile, "-o", tmp_path / "m").endswith(
        "version 1 of a profile's table, not 2: profile again"
    )


def test_refuses_a_profile_without_its_functions(profile, tmp_path):
    (tmp_path / "p.symbols.parquet").unlink()
    line = refusal(profile, "-o", tmp_path / "m")
    assert line.endswith(f"p.symbols.parquet: no such file: it belongs to {profile}")
    assert "only tables of functions" in refusal(tmp_path / "p.symbols.parquet", "-o", tmp_path / "m")


def test_refuses_profiles_with_too_little_to_learn(tmp_path):
    path = tmp_path / "p.parquet"
    rows = synthetic.contexts(300)
    for row in rows:
        row["live"] = 1 + sum(row.pop(name) for name in list(row) if name.startswith("freed_")) + row["live"]
        row |= dict.fromkeys(synthetic.FREED, 0)
    synthetic.write(path, rows)
    assert "contexts have lifetime class inf: nothing to learn" in refusal(path, "-o", tmp_path / "m")
    synthetic.write(path, [row | {"live": 0} for row in rows])
    assert "no contexts with known lifetimes: profile for longer" in refusal(path, "-o", tmp_path / "m")
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 0), path)
    assert "no contexts: the program allocated less than one sample" in refusal(path, "-o", tmp_path / "m")


def test_refuses_places_that_cannot_be_written(profile, tmp_path):
    assert refusal(profile, "-o", tmp_path / "no" / "m").endswith("no such directory")


def test_refuses_files_that_are_no_model(profile, tmp_path):
    assert "No such file" in refusal(profile, "--measure", tmp_path / "none")
    assert "not a model of 'mayfly train'" in refusal(profile, "--measure", profile)
