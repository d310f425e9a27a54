"""The cost of a confusion of lifetime classes, by its effect on pages: the same numbers by which the heap
weighs a model's predictions (heap/src/lifetime/cost.rs). An object that outlives its page keeps the page from
being freed. One that dies earlier leaves a hole that shorter-lived objects fill (LLAMA §6.3): a class too
long costs least."""

import numpy as np

from train.data.dataset import CLASS_NAMES

CLASSES = len(CLASS_NAMES)
OUTLIVES = (0, 4, 12, 20, 28, 36, 44)
"""By how many classes longer an object lives than predicted."""
DIES_BEFORE = (0, 1, 4, 8, 12, 16, 20)
"""By how many classes shorter it lives."""


def _of(lived: int, predicted: int) -> int:
    return OUTLIVES[lived - predicted] if lived > predicted else DIES_BEFORE[predicted - lived]


COSTS = np.array([[_of(lived, predicted) for predicted in range(CLASSES)] for lived in range(CLASSES)])
"""By true and predicted class."""


def cheapest(shares: np.ndarray) -> int:
    """The class to predict for objects of which these shares live in each class, (CLASSES,): the one that
    costs least; of several, the most common one."""
    costs = shares @ COSTS
    least = np.flatnonzero(costs == costs.min())
    return int(least[shares[least].argmax()])


LITTLE = DIES_BEFORE[1]


def near_share(shares: np.ndarray, predicted: int) -> float:
    """The share, 0 to 1, of the objects for which this prediction costs next to nothing: the class itself and
    its cheap neighbour."""
    return float(shares[COSTS[:, predicted] <= LITTLE].sum() / shares.sum())
