"""Programs that no model has seen (LLAMA §10: an embedding for frames): `python -m
train.studies.new_binaries NAME=PROFILE…`. Each program in turn is predicted from all others, in three
ways: by chance, that is their most common class; by a network of their names; and by one whose tokens begin
with vectors learned from the symbols of all programs, in which tokens of the same names lie near each other
(as word2vec's, by the singular vectors of their mutual information)."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np

from train import progress
from train.data import contexts, symbols
from train.data.contexts import Contexts, Split
from train.data.tokens import RESERVED, Vocabulary, tokenize
from train.errors import TrainError, end_with
from train.model import measure, optional_deps
from train.model.recipe import Recipe

DIMENSIONS = 32
# As large as the initial vectors of training.
SCALE = 0.1
MOST_TOKENS = 24
"""Tokens of one name that are counted with each other."""
STEPS_OF_SVD = 3


def vectors(names: Iterable[str], size: int, seed: int) -> tuple[Vocabulary, np.ndarray]:
    """The most common tokens of these names, `size` of them, and a vector for each, (tokens, DIMENSIONS), the
    reserved ones first."""
    names = list(names)
    vocabulary = Vocabulary.of(names, size)
    numbers = {token: number for number, token in enumerate(vocabulary.tokens)}
    together: Counter[tuple[int, int]] = Counter()
    for name in names:
        met = sorted({numbers[token] for token in tokenize(name) if token in numbers})[:MOST_TOKENS]
        together.update(combinations_with_replacement(met, 2))
    counts = np.zeros((len(vocabulary), len(vocabulary)), np.float32)
    for (one, other), number in together.items():
        counts[one, other] = counts[other, one] = number
    alone = np.maximum(counts.sum(axis=1), 1)
    with np.errstate(divide="ignore"):
        mutual = np.log(counts * counts.sum() / np.outer(alone, alone))
    mutual = np.maximum(mutual, 0)
    return vocabulary, _singular(mutual, seed)


def _singular(matrix: np.ndarray, seed: int) -> np.ndarray:
    """The largest singular vectors of a symmetric matrix, found by powers of it, as rows."""
    random = np.random.default_rng(seed).standard_normal((len(matrix), 2 * DIMENSIONS)).astype(np.float32)
    for _ in range(STEPS_OF_SVD):
        random, _ = np.linalg.qr(matrix @ random)
    left, sizes, _ = np.linalg.svd(random.T @ matrix, full_matrices=False)
    rows = (random @ left)[:, :DIMENSIONS] * np.sqrt(sizes[:DIMENSIONS])
    rows = np.pad(rows, ((0, 0), (0, max(0, DIMENSIONS - rows.shape[1]))))
    return (rows * SCALE / max(rows.std(), 1e-9)).astype(np.float32)


def joined(programs: Iterable[Contexts]) -> Contexts:
    """All contexts of these programs; each program has the same weight, however long it ran."""
    first, *others = [
        replace(each, weights=each.weights / each.weights.sum(), bytes=each.bytes / each.bytes.sum())
        for each in programs
    ]
    for other in others:
        first = first.joined_by(other)
    return replace(first, weights=1e6 * first.weights, bytes=1e6 * first.bytes)


def predicted_from_others(
    name: str, programs: dict[str, Contexts], known: tuple, recipe: Recipe
) -> dict[str, float]:
    """The accuracy on one program of models of the others, in percent of bytes."""
    networks = optional_deps.networks()
    own = programs[name]
    learn = joined(each for other, each in programs.items() if other != name)
    constant = np.bincount(learn.labels, learn.bytes).argmax()
    predicted = {"chance": np.full(len(own), constant)}
    nothing = learn.chosen(np.zeros(len(learn), bool))
    for kind, begins_with in {"names": None, "embedding": known}.items():
        with progress.stage(f"learning from all programs but {name}, {kind}"):
            split = Split(learn, nothing, own)
            predicted[kind] = networks.trial(split, recipe, begins_with)[1]
    found = {}
    for kind, classes in predicted.items():
        accuracy = measure.accuracy(own, classes)
        found |= {
            f"{kind}.bytes_percent": round(100 * accuracy.bytes, 2),
            f"{kind}.bytes_off_by_one_percent": round(100 * accuracy.bytes_near, 2),
            f"{kind}.contexts_percent": round(100 * accuracy.unweighted, 2),
            f"{kind}.cost": round(accuracy.cost, 3),
        }
    shares = (f"{kind} {found[f'{kind}.bytes_percent']}%" for kind in predicted)
    progress.say(f"{name}, of bytes: {', '.join(shares)}")
    return found


def main(command_line: list[str]) -> int:
    """Prints one JSON object of percents; returns the exit status. Raises TrainError for fewer than two
    programs."""
    parser = argparse.ArgumentParser(prog="train.studies.new_binaries", description=__doc__)
    parser.add_argument("programs", nargs="+", metavar="NAME=PROFILE", help="two at least")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(command_line)
    paths = dict(each.split("=", 1) for each in given.programs)
    if len(paths) < 2:
        raise TrainError("one program teaches nothing about others: name two at least")
    programs = {name: contexts.load("duckdb", [path]) for name, path in paths.items()}
    with progress.stage("naming the functions of all files"):
        files = symbols.load("duckdb", list(paths.values()))
    with progress.stage("learning which tokens occur together"):
        names = {name for file in files for name in set(file.names)}
        known = vectors(sorted(names), given.vocabulary, given.seed)
    recipe = Recipe("lstm-frames", 64, given.vocabulary, given.rounds, given.seed)
    found: dict[str, float] = {"names": len(names), "tokens": len(known[0]) - len(RESERVED)}
    for name in programs:
        found |= {
            f"{name}.{what}": value
            for what, value in predicted_from_others(name, programs, known, recipe).items()
        }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    end_with(main)
