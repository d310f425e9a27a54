"""A server of predictions as gunicorn serves it: a forest, embeddings to search, a frame to look things up
in. `app.py FOLDER` writes their files, once; a worker reads them from the folder in MAYFLY_BENCH_FILES."""

import os
import pickle
import sys
from pathlib import Path

import numpy
import pandas
from sklearn.ensemble import RandomForestClassifier

EMBEDDINGS = (39_714, 384)  # 61 MB
ROWS = 2_000_000


def prepare(folder: Path) -> None:
    rng = numpy.random.default_rng(1)
    inputs = rng.random((20_000, 16))
    wanted = inputs.sum(1) + rng.normal(0, 0.6, len(inputs)) > 8
    forest = RandomForestClassifier(100, n_jobs=1, random_state=1).fit(inputs, wanted)
    frame = pandas.DataFrame(
        {
            "price": rng.random(ROWS),
            "stock": rng.integers(0, 1000, ROWS),
            "seller": rng.integers(0, 50_000, ROWS),
            "kind": pandas.Categorical.from_codes(
                rng.integers(0, 20, ROWS), [f"kind {n}" for n in range(20)]
            ),
        }
    )
    (folder / "forest").write_bytes(pickle.dumps(forest))
    frame.to_pickle(folder / "frame")
    numpy.save(folder / "embeddings.npy", rng.random(EMBEDDINGS, dtype="f4"))


def load_model(folder: Path) -> dict:
    return {
        "forest": pickle.loads((folder / "forest").read_bytes()),
        "embeddings": numpy.load(folder / "embeddings.npy"),
        "frame": pandas.read_pickle(folder / "frame"),
    }


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
else:
    model = load_model(Path(os.environ["MAYFLY_BENCH_FILES"]))


def answer(number: int) -> str:
    """The nearest item, whether it sells, and the prices of similar ones."""
    rng = numpy.random.default_rng(number)
    nearest = int((model["embeddings"] @ rng.random(EMBEDDINGS[1], dtype="f4")).argmax())
    sells = model["forest"].predict_proba(rng.random((1, 16)))[0, 1]
    begin = int(rng.integers(0, ROWS - 5000))
    prices = model["frame"].iloc[begin : begin + 5000].groupby("kind", observed=True).price.mean()
    return f"{nearest} {sells:.9f} {prices.sum():.9f}"


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer(int(environ["QUERY_STRING"] or 0)).encode()]
