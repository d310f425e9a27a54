"""A search service as uvicorn serves it: texts by their words, embeddings, and a table of titles. Its
vocabulary and titles are Python's objects, which are laid out differently in every process. `search.py
FOLDER` writes its files."""

import os
import pickle
import sys
from pathlib import Path

import numpy
import pandas
from sklearn.feature_extraction.text import TfidfVectorizer

TEXTS, WORDS, WORDS_EACH, DIMENSIONS = 40_000, 60_000, 50, 384


def prepare(folder: Path) -> None:
    rng = numpy.random.default_rng(1)
    words = numpy.array([f"word{number}" for number in range(WORDS)])
    texts = [" ".join(words[chosen]) for chosen in rng.integers(0, WORDS, (TEXTS, WORDS_EACH))]
    vectorizer = TfidfVectorizer()
    matrix = vectorizer.fit_transform(texts)
    titles = pandas.DataFrame(
        {"title": [text[:40] for text in texts], "year": rng.integers(1900, 2020, TEXTS)}
    )
    (folder / "words").write_bytes(pickle.dumps({"vectorizer": vectorizer, "matrix": matrix}))
    titles.to_pickle(folder / "titles")
    numpy.save(folder / "embeddings.npy", rng.random((TEXTS, DIMENSIONS), dtype="f4"))


def load_model(folder: Path) -> dict:
    return pickle.loads((folder / "words").read_bytes()) | {
        "embeddings": numpy.load(folder / "embeddings.npy"),
        "titles": pandas.read_pickle(folder / "titles"),
    }


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
else:
    model = load_model(Path(os.environ["MAYFLY_BENCH_FILES"]))


def answer(number: int) -> str:
    """The text with most of some words, its age, and the neighbours of a point."""
    of = model
    rng = numpy.random.default_rng(number)
    asked = " ".join(f"word{word}" for word in rng.integers(0, WORDS, 8))
    scores = (of["matrix"] @ of["vectorizer"].transform([asked]).T).toarray()
    best = int(scores.argmax())
    near = int((of["embeddings"] @ rng.random(DIMENSIONS, dtype="f4")).argmax())
    found = of["titles"].iloc[best]
    return f"{best} {scores[best, 0]:.9f} {found.title} {found.year} {near}"


def share():
    global model
    import mayfly

    if os.environ["MAYFLY_BENCH_METHOD"] == "process":
        mayfly.advise_process()
    else:
        model = mayfly.pack(model)
        mayfly.advise(model)
    print("worker shares", flush=True)


async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        if os.environ["MAYFLY_BENCH_METHOD"] != "plain":
            import mayfly

            mayfly.later(share)
        print("worker ready", flush=True)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    else:
        body = answer(int(scope["query_string"] or 0)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
