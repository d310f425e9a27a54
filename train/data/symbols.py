"""The functions of every program and library in the profiles: the name of an address, whether its function
allocated in a profile or not. The tables beside profiles hold the code on stacks; of a file that still exists
all code is named (train/data/all_code.py)."""

from bisect import bisect
from dataclasses import dataclass

import ibis
import ibis.expr.types as ir
import numpy as np
from ibis.backends import BaseBackend

from train.data import all_code, profiles
from train.errors import TrainError

SUFFIX = ".symbols.parquet"
NEEDED = {"path": "text", "build_id": "text", "start": "numbers", "end": "numbers", "names": "text"}
# Addresses in the model file have 32 bits; code further in a file is unknown to it.
_ADDRESSES = 1 << 32


@dataclass
class Ranges:
    """The code of one file: `names[i]` is the function from `starts[i]` to before `ends[i]`, ascending."""

    build_id: bytes
    starts: np.ndarray
    ends: np.ndarray
    names: list[str]
    path: str = ""
    """Where it was profiled."""

    @classmethod
    def of_names(cls, names: list[str]) -> "Ranges":
        """A file that has these functions, wherever they are."""
        places = np.arange(len(names), dtype=np.int64)
        return cls(b"any", 16 * places, 16 * places + 16, names)


def load(engine: str, paths: list[str]) -> list[Ranges]:
    """The functions of all files with a build-id that these profiles name, each once, by build-id. Raises
    TrainError for tables that cannot be read or are damaged."""
    with profiles.engine(engine) as connection:
        tables = _tables(connection, paths)
        places = profiles.collect(_paths(tables), paths)
        path_of = dict(zip(places["build_id"].to_pylist(), places["path"].to_pylist(), strict=True))
        for whole in all_code.tables_of(path_of.items()).values():
            tables.append(profiles.open_table(connection, str(whole), NEEDED, "remove it"))
        table = profiles.collect(functions(tables), paths)
    build_ids = np.array(table["build_id"].to_pylist(), dtype=object)
    starts, ends = table["start"].to_numpy(), table["end"].to_numpy()
    names = table["names"].to_pylist()
    edges = np.flatnonzero(build_ids[1:] != build_ids[:-1]) + 1 if len(build_ids) else []
    found = []
    for first, last in zip([0, *edges], [*edges, len(build_ids)], strict=True):
        if first == last:
            continue
        build_id = build_id_of(build_ids[first])
        if not 1 <= len(build_id) <= 32:
            raise TrainError(f"build_id {build_ids[first]} has {len(build_id)} bytes, 32 are the most")
        path = path_of[build_ids[first]]
        rows = zip(starts[first:last].tolist(), ends[first:last].tolist(), names[first:last], strict=True)
        *edges_of_one, names_of_one = zip(*_seen_first(list(rows)), strict=True)
        found.append(Ranges(build_id, *map(np.array, edges_of_one), list(names_of_one), path))
    return found


def _seen_first(rows: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """These ranges, ascending, without overlaps. A range that a profile saw is one address, and has the names
    of its stacks, whatever range it lies in."""
    seen = {start: name for start, end, name in reversed(rows) if end == start + 1}
    points = sorted(seen)
    made: list[tuple[int, int, str]] = []
    reached = 0
    for start, end, name in [row for row in rows if row[1] > row[0] + 1]:
        start = max(start, reached)
        if start >= end:
            continue  # a second name for the same code
        between = points[bisect(points, reached - 1) : bisect(points, start - 1)]
        made += ((point, point + 1, seen[point]) for point in between)
        for point in points[bisect(points, start - 1) : bisect(points, end - 1)]:
            if point > start:
                made.append((start, point, name))
            made.append((point, point + 1, seen[point]))
            start = point + 1
        if start < end:
            made.append((start, end, name))
        reached = end
    made += ((point, point + 1, seen[point]) for point in points[bisect(points, reached - 1) :])
    return made


def build_id_of(text: str) -> bytes:
    """A build-id as the tables have it, in hexadecimal. Raises TrainError for anything else."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise TrainError(f"build_id {text!r} is not in hexadecimal: the file is damaged") from None


def _tables(connection: BaseBackend, paths: list[str]) -> list[ir.Table]:
    return [profiles.open_table(connection, beside(path), NEEDED, f"it belongs to {path}") for path in paths]


def _paths(tables: list[ir.Table]) -> ir.Table:
    """A path of each file, by build-id."""
    first, *others = [table.select("build_id", "path") for table in tables]
    whole = first.union(*others) if others else first
    return whole.group_by("build_id").aggregate(path=whole.path.min())


def functions(tables: list[ir.Table]) -> ir.Table:
    """The rows of all tables of functions, each once, by build-id and address."""
    first, *others = [
        table.select(
            "build_id", start=table.start.cast("int64"), end=table.end.cast("int64"), names=table.names
        )
        for table in tables
    ]
    whole = first.union(*others) if others else first
    whole = whole.filter(
        whole.build_id != "", whole.start >= 0, whole.start < whole.end, whole.end <= _ADDRESSES
    )
    # Of two that begin at the same place the longer one comes first: it contains the address that was seen.
    return whole.distinct().order_by("build_id", "start", ibis.desc("end"), "names")


def beside(profile: str) -> str:
    """The path of the table of functions that belongs to a profile."""
    return profile.removesuffix(".parquet") + SUFFIX
