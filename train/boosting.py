"""For comparison: gradient-boosted trees on hashed n-grams of frames and tokens. What a good predictor
without a network gives; too large and slow for malloc."""

import numpy as np
import xxhash

from train import measure, training
from train.contexts import Contexts
from train.dataset import CLASS_NAMES, HELD_OUT, TRAIN, VALIDATION
from train.errors import TrainError
from train.measure import Accuracy
from train.tokens import tokenize

BUCKETS = 1 << 13
TREES = 300
PATIENCE = 20


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


def held_out_accuracy(data: Contexts, seed: int, most_frames: int) -> Accuracy | None:
    """Trains on the same contexts as the networks, and stops by the same ones."""
    try:
        import lightgbm
    except ImportError:
        raise TrainError("LightGBM is not installed: run 'train/environment more' once") from None
    parts = {name: data.part(name) for name in (TRAIN, VALIDATION, HELD_OUT)}
    tables = {name: _table(part, most_frames) for name, part in parts.items()}
    options = {
        "objective": "multiclass",
        "num_class": len(CLASS_NAMES),
        "min_data_in_leaf": 5,
        "seed": seed,
        "deterministic": True,
        "num_threads": 2,
        "verbosity": -1,
    }
    sets = {
        name: lightgbm.Dataset(
            tables[name], parts[name].labels, weight=training.say_in_training(parts[name].weights)
        )
        for name in (TRAIN, VALIDATION)
        if len(parts[name])
    }
    stop = [lightgbm.early_stopping(PATIENCE, verbose=False)] if VALIDATION in sets else []
    valid = [sets[VALIDATION]] if VALIDATION in sets else None
    trees = lightgbm.train(options, sets[TRAIN], TREES, valid_sets=valid, callbacks=stop)
    held_out = parts[HELD_OUT]
    if not len(held_out):
        return None
    predicted = trees.predict(tables[HELD_OUT]).argmax(axis=1)
    return measure.accuracy(held_out.labels, predicted, held_out.weights)


def _table(part: Contexts, most_frames: int):
    from scipy.sparse import csr_matrix

    rows, columns, values = [], [], []
    for row, stack in enumerate(part.stacks):
        for column, value in features(stack[:most_frames]).items():
            rows.append(row)
            columns.append(column)
            values.append(value)
    return csr_matrix((np.array(values, np.float32), (rows, columns)), shape=(len(part), BUCKETS))
