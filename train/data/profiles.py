"""Reads the tables of `mayfly profile`, with DuckDB or Spark, and refuses those that cannot be trained on
before anything is computed."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow
import pyarrow.parquet
from ibis.backends import BaseBackend

from train.errors import TrainError

FREED = ("freed_10ms", "freed_100ms", "freed_1s", "freed_10s", "freed_100s", "freed_1000s", "freed_later")
"""Columns with the number of sampled objects that died within each class, the last one later than 1000 s."""

LEFT = tuple(name.replace("freed", "left") for name in FREED)
"""Columns with the number of live objects whose process ran on when the profile ended, by the class of their
age then: they live at least so long. Profiles of whole runs, and older tables, have none."""

NEEDED = {"stack": "text", "allocations": "numbers", "bytes": "numbers"} | dict.fromkeys(
    ("live", *FREED), "numbers"
)
VERSION = "2"


@contextlib.contextmanager
def engine(name: str) -> Iterator[BaseBackend]:
    """A connection to the engine that computes the dataset, closed when the block ends. Raises TrainError
    where the engine does not start."""
    if name == "duckdb":
        connection = ibis.duckdb.connect()
        try:
            yield connection
        finally:
            connection.disconnect()
        return
    session = _spark_session()
    try:
        yield ibis.pyspark.connect(session)
    finally:
        session.stop()


def _spark_session():
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise TrainError("Spark is not installed: run 'train/environment spark' once") from None
    builder = SparkSession.builder.appName("mayfly train")
    if "SPARK_REMOTE" not in os.environ and "MASTER" not in os.environ:
        # On this machine, without the web page: Spark's own variables name a cluster.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.log.level", "ERROR")
    # Overflow is an error, as it is with DuckDB.
    builder = builder.config("spark.sql.ansi.enabled", "true").config("spark.sql.session.timeZone", "UTC")
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise TrainError(
            f"Spark does not start ({_first_line(error)}): is Java 17 or later installed?"
        ) from None


def read(connection: BaseBackend, paths: list[str]) -> ir.Table:
    """The contexts of several profiles as one table with the columns in `NEEDED`. Raises TrainError for files
    that are not tables of a profile, of another version, without rows or with impossible values."""
    tables = [_read_one(connection, path) for path in paths]
    return tables[0] if len(tables) == 1 else ibis.union(*tables)


def open_table(connection: BaseBackend, path: str, needed: dict[str, str], hint: str) -> ir.Table:
    """A Parquet file that has these columns, of these kinds. Raises TrainError, with the hint, where it has
    not."""
    if "://" not in path:
        _refuse_other_files(path, hint)
    try:
        table = connection.read_parquet(path)
        schema = table.schema()
    except Exception as error:
        raise TrainError(f"{path}: cannot be read: {_first_line(error)}") from None
    missing = [name for name in needed if name not in schema]
    if missing:
        raise TrainError(f"{path}: no column {', '.join(missing)}: not a table of 'mayfly profile'")
    for name, wanted in needed.items():
        kind = schema[name]
        if not {"text": kind.is_string, "numbers": kind.is_numeric, "bytes": kind.is_binary}[wanted]():
            raise TrainError(f"{path}: column {name} is {kind}, not {wanted}")
    return table


def _refuse_other_files(path: str, hint: str) -> None:
    if not Path(path).is_file():
        raise TrainError(f"{path}: {'is a directory' if Path(path).is_dir() else 'no such file'}: {hint}")
    try:
        metadata = pyarrow.parquet.read_metadata(path).metadata or {}
    except Exception:
        raise TrainError(f"{path}: not a Parquet file, or a damaged one: {hint}") from None
    version = metadata.get(b"mayfly.version", b"none").decode(errors="replace")
    if version != VERSION:
        raise TrainError(f"{path}: version {version} of a profile's table, not {VERSION}: profile again")


def _read_one(connection: BaseBackend, path: str) -> ir.Table:
    table = open_table(connection, path, NEEDED, "name the .parquet file that 'mayfly profile' wrote")
    table = table.select(
        "stack",
        allocations=table.allocations.cast("float64"),
        bytes=table.bytes.cast("float64"),
        **{name: table[name].cast("int64") for name in ("live", *FREED)},
        **{name: _left(table, name) for name in LEFT},
    )
    _refuse_bad_rows(path, table)
    return table


def _left(table: ir.Table, name: str) -> ir.IntegerValue:
    return table[name].cast("int64") if name in table.schema() else ibis.literal(0, "int64")


def collect(expression: ir.Table, paths: list[str]) -> pyarrow.Table:
    """Computes an expression over these files. Raises TrainError where that cannot be done."""
    try:
        return expression.to_pyarrow()
    except Exception as error:
        raise TrainError(f"{', '.join(paths)}: cannot be computed: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _refuse_bad_rows(path: str, table: ir.Table) -> None:
    whole = [table[name] for name in ("live", *FREED, *LEFT)]
    # Not isnan(): DuckDB goes by the file's statistics, which leave NaN out, and finds none.
    checks = {"rows": table.count(), "stack": table.stack.isnull().sum()}
    sums = {"allocations": table.allocations.sum(), "bytes": table.bytes.sum()}
    checks |= {f"sum of {name}": value for name, value in sums.items()}
    for column in [table.allocations, table.bytes, *whole]:
        checks[column.get_name()] = (column.isnull() | (column < 0)).sum()
    found = collect(table.aggregate(**checks), [path]).to_pylist()[0]
    if not found.pop("rows"):
        raise TrainError(
            f"{path}: no contexts: the program allocated less than one sample; "
            "profile it for longer or with a smaller --every"
        )
    totals = {name: found.pop(f"sum of {name}") for name in sums}
    wrong = [name for name, count in found.items() if count]
    wrong = wrong or [name for name, total in totals.items() if not math.isfinite(total)][:1]
    for name in wrong:
        what = "no value" if name == "stack" else "a value that is not a number of 0 or more"
        raise TrainError(f"{path}: column {name} has {what}: the file is damaged")
