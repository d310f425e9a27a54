"""Whether two runs of a program agree: the share of allocated bytes whose T95 (LLAMA §5.1) is the same in
both. No model can predict what differs by chance or by the machine's load, so this is about the best accuracy
that a model can reach."""

from itertools import pairwise

import numpy as np

from train.data import contexts
from train.data.contexts import FRAME_SEPARATOR, Contexts


def between_runs(engine: str, paths: list[str]) -> float | None:
    """Of the bytes in contexts that a profile shares with the next one, the share, 0 to 1, whose class is the
    same in both; `None` for one profile, or where no two share a context."""
    if len(paths) < 2:
        return None
    runs = [contexts.load(engine, [path]) for path in paths]
    shared = [_shared(one, other) for one, other in pairwise(runs)]
    total = sum(weight for _, weight in shared)
    return sum(same for same, _ in shared) / total if total else None


def _shared(one: Contexts, other: Contexts) -> tuple[float, float]:
    """Bytes of both runs in contexts that both have: those of the same class in both, and all."""
    places = {FRAME_SEPARATOR.join(stack): place for place, stack in enumerate(one.stacks)}
    found = [places.get(FRAME_SEPARATOR.join(stack), -1) for stack in other.stacks]
    in_one, in_other = np.array(found, np.int64), np.arange(len(found))
    both = in_one >= 0
    in_one, in_other = in_one[both], in_other[both]
    weights = one.bytes[in_one] + other.bytes[in_other]
    return float(weights @ (one.labels[in_one] == other.labels[in_other])), float(weights.sum())
