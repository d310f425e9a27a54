"""For comparison: gradient-boosted trees on hashed n-grams of frames and tokens. What a good predictor
without a network gives; too large and slow for malloc."""

import functools

import numpy as np
import xxhash

from train import measure, training
from train.contexts import Contexts, Fold
from train.dataset import CLASS_NAMES
from train.errors import TrainError
from train.measure import Accuracy
from train.tokens import tokenize

BUCKETS = 1 << 13
TREES = 100
TREES_OF_FEW = 20
PATIENCE = 8
OPTIONS = {
    "objective": "multiclass",
    "num_class": len(CLASS_NAMES),
    "min_data_in_leaf": 5,
    "deterministic": True,
    "learning_rate": 0.2,
    # Two threads wait for one another in a loop, on a busy machine for minutes.
    "num_threads": 1,
    "verbosity": -1,
}


def features(stack: list[str]) -> dict[int, int]:
    """How often each bucket of n-grams occurs: single frames, two neighbours, tokens, two neighbouring
    tokens."""
    grams = [("frame", frame) for frame in stack]
    grams += [("frames", f"{inner}@{outer}") for inner, outer in zip(stack, stack[1:], strict=False)]
    grams += [("place", f"{place} {frame}") for place, frame in enumerate(stack[:4])]
    tokens = [token for frame in stack for token in tokenize(frame)]
    grams += [("token", token) for token in tokens]
    grams += [("tokens", f"{first} {second}") for first, second in zip(tokens, tokens[1:], strict=False)]
    counts: dict[int, int] = {}
    for kind, text in grams:
        bucket = xxhash.xxh32_intdigest(f"{kind} {text}".encode()) % BUCKETS
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def held_out_accuracy(data: Contexts, folds: list[Fold], seed: int, most_frames: int) -> Accuracy | None:
    """Trains on the same contexts as the networks, stops by the same ones, and is measured on the same ones.
    Raises TrainError without LightGBM."""
    try:
        import lightgbm
    except ImportError:
        raise TrainError("LightGBM is not installed: run 'train/environment more' once") from None
    told, predicted = [], []
    for fold in folds:
        split = data.split(fold)
        if not len(split.learn) or not len(split.held_out):
            continue
        say = training.say_in_training
        learn, stop_by = (
            lightgbm.Dataset(_table(part, most_frames), part.labels, weight=say(part.weights))
            for part in (split.learn, split.stop_by)
        )
        stops = len(split.stop_by) > 0
        trees = lightgbm.train(
            OPTIONS | {"seed": seed},
            learn,
            TREES if stops else TREES_OF_FEW,
            valid_sets=[stop_by] if stops else None,
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)] if stops else [],
        )
        told.append(split.held_out)
        predicted.append(trees.predict(_table(split.held_out, most_frames)).argmax(axis=1))
    if not told:
        return None
    return measure.accuracy(functools.reduce(Contexts.joined_by, told), np.concatenate(predicted))


def _table(part: Contexts, most_frames: int):
    from scipy.sparse import csr_matrix

    rows, columns, values = [], [], []
    for row, stack in enumerate(part.stacks):
        for column, value in features(stack[:most_frames]).items():
            rows.append(row)
            columns.append(column)
            values.append(value)
    return csr_matrix((np.array(values, np.float32), (rows, columns)), shape=(len(part), BUCKETS))
