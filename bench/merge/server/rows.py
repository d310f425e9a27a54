"""A service of tables as gunicorn serves it: the same rows as a frame of pandas, one of Polars and a table of
DuckDB. `rows.py FOLDER` writes them, once; a worker reads them from the folder in MAYFLY_BENCH_FILES."""

import os
import sys
from pathlib import Path

import duckdb
import numpy
import pandas
import polars
import pyarrow.parquet

ROWS = 1_000_000
PART = 5000


def prepare(folder: Path) -> None:
    rng = numpy.random.default_rng(1)
    columns = {
        "id": numpy.arange(ROWS),
        "price": rng.random(ROWS),
        "stock": rng.integers(0, 1000, ROWS),
        "seller": rng.integers(0, 50_000, ROWS),
        "kind": rng.integers(0, 20, ROWS),
        "title": [f"item {number} of {number % 977} in a list" for number in rng.permutation(ROWS)],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")


def load(folder: Path) -> tuple[dict, duckdb.DuckDBPyConnection]:
    path = folder / "rows.parquet"
    database = duckdb.connect(config={"threads": 1})
    database.execute("CREATE TABLE items AS FROM read_parquet(?)", [str(path)])
    return {"pandas": pandas.read_parquet(path), "polars": polars.read_parquet(path)}, database


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
else:
    model, database = load(Path(os.environ["MAYFLY_BENCH_FILES"]))

BUSIEST = """
SELECT seller, count(*) AS items, max(title) AS title FROM items WHERE id >= ? AND id < ?
GROUP BY seller ORDER BY items DESC, seller LIMIT 1
"""


def answer(number: int) -> str:
    """Of some rows: the prices by kind and the dearest title, the stock by kind, the busiest seller."""
    of = model
    begin = int(numpy.random.default_rng(number).integers(0, ROWS - PART))
    frame = of["pandas"].iloc[begin : begin + PART]
    prices = frame.groupby("kind").price.mean().sum()
    dearest = frame.title.iloc[int(frame.price.argmax())]
    stock = of["polars"].slice(begin, PART).group_by("kind").agg(polars.col("stock").sum()).sort("kind")
    longest = of["polars"]["title"].slice(begin, PART).str.len_bytes().max()
    busiest = database.execute(BUSIEST, [begin, begin + PART]).fetchone()
    return f"{prices:.9f} {dearest} {stock['stock'].to_list()} {longest} {busiest}"


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer(int(environ["QUERY_STRING"] or 0)).encode()]
