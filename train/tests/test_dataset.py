"""The dataset on DuckDB against the definition of T95 written out, and on Spark against DuckDB."""

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train.data import agreement, partitions, profiles
from train.data.dataset import TENTHS, labelled_contexts
from train.data.profiles import FREED, LEFT
from train.tests import synthetic


def rows_of(engine: str, paths) -> list[dict]:
    with profiles.engine(engine) as connection:
        table = labelled_contexts(profiles.read(connection, [str(path) for path in paths]))
        return profiles.collect(table, ["profile"]).to_pylist()


def row(stack: str, counts: list[int], live: int = 0, allocations: float = 1.0) -> dict:
    return {"stack": stack, "allocations": allocations, "live": live} | dict(zip(FREED, counts, strict=True))


def attached(stack: str, counts: list[int], left: list[int]) -> dict:
    """A row of a profile of a program that ran on."""
    return row(stack, counts, sum(left)) | dict(zip(LEFT, left, strict=True))


def t95(counts: list[int], live: int) -> int:
    """§5.1: the first class within which at least 95% of the objects died."""
    lifetimes = [number for number, count in enumerate([*counts[:6], counts[6] + live]) for _ in range(count)]
    return next(
        c for c in range(7) if c == 6 or sum(x <= c for x in lifetimes) >= 0.95 * len(lifetimes) - 1e-9
    )


def test_the_label_is_the_class_by_which_95_percent_have_died(tmp_path):
    cases = {
        "exactly": ([95, 0, 5, 0, 0, 0, 0], 0, 0),
        "one less": ([94, 0, 6, 0, 0, 0, 0], 0, 2),
        "live ones never died": ([94, 0, 0, 0, 0, 0, 0], 6, 6),
        "but 5% may": ([94, 1, 0, 0, 0, 0, 0], 5, 1),
        "later than 1000 s": ([0, 0, 0, 0, 0, 0, 3], 0, 6),
    }
    synthetic.write(tmp_path / "p", [row(name, counts, live) for name, (counts, live, _) in cases.items()])
    found = {each["stack"]: each["label"] for each in rows_of("duckdb", [tmp_path / "p"])}
    assert found == {name: label for name, (_, _, label) in cases.items()}


NONE = [0] * 7


def test_objects_left_alive_live_at_least_so_long(tmp_path):
    looks = {
        "at least": ([60, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 40, 0, 0], 4),
        "nothing but that": (NONE, [0, 0, 0, 9, 0, 0, 0], 3),
        "outlived the last limit": (NONE, [0, 0, 0, 0, 0, 0, 9], 6),
        "all that were seen for longer died": ([100, 0, 0, 50, 0, 0, 0], [0, 0, 40, 0, 0, 0, 0], 3),
        "most die at once": ([99, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0], 0),
    }
    synthetic.write(tmp_path / "p", [attached(name, *counts) for name, (*counts, _) in looks.items()])
    found = {each["stack"]: each["label"] for each in rows_of("duckdb", [tmp_path / "p"])}
    assert found == {name: label for name, (_, _, label) in looks.items()}


def test_short_profiles_and_whole_runs_make_one_estimate(tmp_path):
    short = [attached(name, NONE, [0, 0, 0, 500, 0, 0, 0]) for name in ("dies", "stays")]
    whole = [row("dies", [0, 0, 0, 0, 80, 0, 0]), row("stays", NONE, live=2)]
    synthetic.write(tmp_path / "short", short)
    synthetic.write(tmp_path / "whole", whole)  # without the columns, as older tables
    paths = [tmp_path / "short", tmp_path / "whole"]
    labels = lambda paths: {each["stack"]: each["label"] for each in rows_of("duckdb", paths)}  # noqa: E731
    assert labels(paths[:1]) == {"dies": 3, "stays": 3}
    assert labels(paths) == {"dies": 4, "stays": 6}


def test_merges_contexts_of_several_profiles_and_drops_unknown_ones(tmp_path):
    synthetic.write(
        tmp_path / "a", [row("f@main", [90, 0, 0, 0, 0, 0, 0], allocations=10.4), row("g", [0] * 7)]
    )
    synthetic.write(tmp_path / "b", [row("f@main", [0, 0, 0, 10, 0, 0, 0], allocations=5.0)])
    [found] = rows_of("duckdb", [tmp_path / "a", tmp_path / "b"])
    tenth = found.pop("tenth")
    assert found == {"stack": "f@main", "label": 3, "weight": 15, "bytes": 986, "samples": 100}
    assert 0 <= tenth < TENTHS


def test_two_runs_agree_on_contexts_of_the_same_class(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    at_once, late = [100, 0, 0, 0, 0, 0, 0], [0, 0, 0, 100, 0, 0, 0]
    here = [row("same@main", at_once, 0, 30), row("other@main", at_once, 0, 10), row("here", late, 0, 500)]
    synthetic.write(tmp_path / "a", here)
    synthetic.write(tmp_path / "b", [row("other@main", late, 0, 10), row("same@main", at_once, 0, 50)])
    synthetic.write(tmp_path / "c", [row("elsewhere", at_once, 0, 9)])
    assert agreement.between_runs("duckdb", paths[:2]) == 0.8
    assert agreement.between_runs("duckdb", paths) == 0.8
    assert agreement.between_runs("duckdb", paths[:1]) is None
    assert agreement.between_runs("duckdb", paths[1:]) is None


counts = st.lists(st.integers(0, 40), min_size=7, max_size=7)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
        st.tuples(counts, st.integers(0, 9)),
        min_size=1,
    )
)
def test_any_counts_have_the_label_of_the_definition(tmp_path, contexts):
    synthetic.write(tmp_path / "p", [row(stack, counts, live) for stack, (counts, live) in contexts.items()])
    found = {each["stack"]: each["label"] for each in rows_of("duckdb", [tmp_path / "p"])}
    known = {stack: (counts, live) for stack, (counts, live) in contexts.items() if sum(counts) + live}
    assert found == {stack: t95(counts, live) for stack, (counts, live) in known.items()}


def test_a_context_falls_into_the_same_part_in_every_profile(tmp_path):
    rows = synthetic.contexts(3000, seed=5)
    synthetic.write(tmp_path / "whole", rows)
    synthetic.write(tmp_path / "some", rows[::3])
    whole = {each["stack"]: each["tenth"] for each in rows_of("duckdb", [tmp_path / "whole"])}
    some = {each["stack"]: each["tenth"] for each in rows_of("duckdb", [tmp_path / "some"])}
    assert some.items() <= whole.items()
    shares = [list(whole.values()).count(tenth) / len(whole) for tenth in range(TENTHS)]
    assert len(some) > 900 and all(abs(share - 0.1) < 0.03 for share in shares)


def test_tables_of_before_are_read_beside_new_ones(tmp_path):
    """The heap's tables were compressed by Snappy, and are now by Zstandard."""
    rows = synthetic.contexts(300, seed=3)
    for codec in ("snappy", "zstd"):
        synthetic.write(tmp_path / f"{codec}.parquet", rows, codec=codec)
        found = pq.ParquetFile(tmp_path / f"{codec}.parquet").metadata.row_group(0).column(0).compression
        assert found == codec.upper()
    old, new = ([tmp_path / f"{codec}.parquet"] for codec in ("snappy", "zstd"))
    assert rows_of("duckdb", old) == rows_of("duckdb", new)
    assert {each["stack"] for each in rows_of("duckdb", [*old, *new])} == {each["stack"] for each in rows}


def test_spark_gives_the_same_rows_as_duckdb(tmp_path):
    pytest.importorskip("pyspark", reason="Spark takes minutes to install: set MAYFLY_SOAK")
    # Some contexts in both tables, values at the edges, names beyond ASCII.
    edges = [
        row("größe@日本@main", [19, 1, 0, 0, 0, 0, 0], 0, 0.5),
        row("", [0] * 7, 1, 2.5),
        row("x", [0] * 7, 0, 1.0),
        attached("left", [3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]),
        attached("all left", NONE, [2, 7, 1, 8, 2, 8, 0]),
        attached("large", [10**7, 3, 0, 7, 0, 0, 10**5], [11, 0, 10**6, 13, 0, 17, 0]),
    ]
    for build in "ab":
        (tmp_path / f"program=web/build={build}").mkdir(parents=True)
    synthetic.write(tmp_path / "program=web/build=a/p.parquet", synthetic.contexts(1500, seed=1) + edges)
    synthetic.write(
        tmp_path / "program=web/build=b/p.parquet",
        synthetic.contexts(1500, seed=1)[:700] + synthetic.contexts(500, seed=2) + edges,
    )
    with partitions.opened([str(tmp_path)], "program = 'web'", "duckdb") as paths:
        duckdb = rows_of("duckdb", paths)
    with partitions.opened([str(tmp_path)], "program = 'web'", "spark") as paths:
        spark = rows_of("spark", paths)
    assert len(duckdb) > 1000
    assert spark == duckdb
