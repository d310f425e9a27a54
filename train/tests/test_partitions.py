"""Data sets of profiles: folders and buckets with partitions, the choice of `--where`, and profiles that are
left out or refused."""

import json
import os

import pyarrow.parquet as pq
import pytest

from train.__main__ import main
from train.data import partitions
from train.errors import TrainError
from train.tests import bucket, synthetic


@pytest.fixture
def dataset(tmp_path):
    """Two programs, one of them in three versions, of which 10 comes after 9."""
    root = tmp_path / "profiles"
    places = [
        "program=web/version=2",
        "program=web/version=9",
        "program=web/version=10",
        "program=a%2Fb/version=9",
    ]
    for number, place in enumerate(places):
        (root / place).mkdir(parents=True)
        synthetic.write(root / place / "node1.parquet", synthetic.contexts(40, seed=number))
    return root


def chosen(name, where=None, engine="duckdb") -> list[str]:
    with partitions.opened([str(name)], where, engine) as paths:
        assert all(os.path.isfile(path) for path in paths) or engine == "spark"
        return [path.split("profiles/")[-1].removesuffix("/node1.parquet") for path in paths]


def refusal(*arguments) -> str:
    with pytest.raises(TrainError) as refused:
        main([str(argument) for argument in arguments])
    [line] = str(refused.value).splitlines()
    return line


def test_reads_a_whole_data_set_or_the_chosen_partitions(dataset, tmp_path, capsys):
    assert len(chosen(dataset)) == 4
    assert chosen(dataset, "program = 'web' AND version >= '9'") == [
        "program=web/version=10",
        "program=web/version=9",
    ]
    assert chosen(dataset, "program = 'a/b'") == ["program=a%2Fb/version=9"]
    assert chosen(dataset, "file LIKE '%version=2/%'") == ["program=web/version=2"]
    options = ["--rounds", "1", "--hidden", "16", "--json"]
    found = {}
    for where in ("program = 'web'", "version = 2"):
        assert main([str(dataset), "-o", str(tmp_path / "m"), "--where", where, *options]) == 0
        found[where] = json.loads(capsys.readouterr().out)["train.contexts"]
    one = pq.read_table(dataset / "program=web/version=2/node1.parquet", columns=["stack"])["stack"]
    assert found["version = 2"] == len(one.unique()) < found["program = 'web'"]


def test_compares_versions_that_are_no_numbers_as_text(dataset):
    (dataset / "program=web/version=10").rename(dataset / "program=web/version=10-rc")
    assert chosen(dataset, "program = 'web' AND version >= '9'") == ["program=web/version=9"]


def test_a_bucket_is_a_data_set(dataset, tmp_path, monkeypatch, capsys):
    where = "program = 'web' AND version > '2'"
    with bucket.served(tmp_path, monkeypatch) as address:
        assert chosen(f"{address}/profiles/", where) == chosen(dataset, where)
        with partitions.opened([f"{address}/profiles"], where, "spark") as urls:
            assert urls[0] == f"{address}/profiles/program=web/version=10/node1.parquet", (
                "Spark reads it itself"
            )
        options = ["-o", str(tmp_path / "m"), "--rounds", "1", "--hidden", "16", "--json"]
        assert main([f"{address}/profiles", *options]) == 0
        whole = json.loads(capsys.readouterr().out)
        assert main([str(dataset), *options]) == 0
        same = json.loads(capsys.readouterr().out)
        assert {key: whole[key] for key in same if "seconds" not in key} == {
            key: same[key] for key in same if "seconds" not in key
        }
        (dataset / "program=web/version=2/node1.symbols.parquet").unlink()
        name = f"{address}/profiles/program=web/version=2/node1"
        assert refusal(f"{address}/profiles", *options) == (
            f"{name}.symbols.parquet: no such file: it belongs to {name}.parquet"
        )
        place = dataset / "program=web/version=2/node1.parquet"
        place.rename(place.with_name("denied.parquet"))
        assert refusal(f"{address}/profiles", *options).startswith(
            f"{address}/profiles/program=web/version=2/denied"
        )
        assert refusal(f"{address}/none", *options).startswith(f"{address}/none: ")


def test_an_impossible_choice_is_refused_by_name(dataset, tmp_path):
    line = refusal(dataset, "-o", tmp_path / "m", "--where", "programme = 'web'")
    assert "programme" in line and line.endswith("the folders have program, version")
    line = refusal(dataset, "-o", tmp_path / "m", "--where", "program =")
    assert line.startswith("--where 'program ='")
    line = refusal(dataset, "-o", tmp_path / "m", "--where", "version = 3")
    assert line.startswith(
        "--where 'version = 3' chooses none of 4 profiles: program=a/b/version=9, program=web/"
    )
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty", "-o", tmp_path / "m").startswith(
        f"{tmp_path}/empty: no profile in this folder"
    )


def test_leaves_out_and_names_a_program_that_allocated_nothing(dataset, tmp_path, capsys):
    first = dataset / "program=web/version=2/node1.parquet"
    pq.write_table(pq.read_table(first).slice(0, 0), first)
    assert "program=web/version=2" not in chosen(dataset)
    assert capsys.readouterr().err == f"mayfly: {first}: no contexts: left out\n"
    line = refusal(dataset / "program=web/version=2", "-o", tmp_path / "m")
    assert line == f"{first}: no contexts, and none in 0 other profiles"


def test_names_a_damaged_file_and_ignores_one_that_is_being_written(dataset, tmp_path):
    (dataset / "program=web/.node2.parquet").write_text("half")
    (dataset / "_temporary").mkdir()
    (dataset / "_temporary/node3.parquet").write_text("half")
    assert len(chosen(dataset)) == 4
    damaged = dataset / "program=web/version=9/node4.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    line = refusal(dataset, "-o", tmp_path / "m")
    assert line.startswith(f"{damaged}: not a Parquet file, or a damaged one")
