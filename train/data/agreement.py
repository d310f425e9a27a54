"""Whether two runs of a program say the same: how much of what is allocated has the same T95 (LLAMA §5.1) in
both. What a run says by chance, or because the machine was busier, no model can know: this is about as right
as one can be."""

from itertools import pairwise

import numpy as np

from train.data import contexts
from train.data.contexts import FRAME_SEPARATOR, Contexts


def between_runs(engine: str, paths: list[str]) -> float | None:
    """The share of bytes, 0 to 1, of contexts that a profile and the next have both, whose class is the
    same in both; `None` for one profile, or where no context is in two."""
    if len(paths) < 2:
        return None
    runs = [contexts.load(engine, [path]) for path in paths]
    shared = [_shared(one, other) for one, other in pairwise(runs)]
    total = sum(weight for _, weight in shared)
    return sum(same for same, _ in shared) / total if total else None


def _shared(one: Contexts, other: Contexts) -> tuple[float, float]:
    """Bytes of both runs in contexts of both: those of the same class in both, and all."""
    places = {FRAME_SEPARATOR.join(stack): place for place, stack in enumerate(one.stacks)}
    found = [places.get(FRAME_SEPARATOR.join(stack), -1) for stack in other.stacks]
    in_one, in_other = np.array(found, np.int64), np.arange(len(found))
    both = in_one >= 0
    in_one, in_other = in_one[both], in_other[both]
    weights = one.bytes[in_one] + other.bytes[in_other]
    return float(weights @ (one.labels[in_one] == other.labels[in_other])), float(weights.sum())
