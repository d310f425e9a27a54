"""What a confusion of lifetime classes costs, by what it does to pages: the same numbers as the heap weighs a
model's words by (heap/src/lifetime/cost.rs). An object that outlives the page that it is put on holds it; one
that dies before leaves a hole that shorter-lived ones fill (LLAMA §6.3): a class more costs least."""

import numpy as np

from train.data.dataset import CLASS_NAMES

CLASSES = len(CLASS_NAMES)
OUTLIVES = (0, 4, 12, 20, 28, 36, 44)
"""By how many classes longer an object lives than was predicted."""
DIES_BEFORE = (0, 1, 4, 8, 12, 16, 20)
"""By how many shorter."""


def _of(lived: int, predicted: int) -> int:
    return OUTLIVES[lived - predicted] if lived > predicted else DIES_BEFORE[predicted - lived]


COSTS = np.array([[_of(lived, predicted) for predicted in range(CLASSES)] for lived in range(CLASSES)])
"""By true and predicted class."""


def cheapest(shares: np.ndarray) -> int:
    """The class to say of objects of which so many live in each class, (CLASSES,): what costs least; of
    several, what most are of."""
    costs = shares @ COSTS
    least = np.flatnonzero(costs == costs.min())
    return int(least[shares[least].argmax()])


LITTLE = DIES_BEFORE[1]


def near_share(shares: np.ndarray, said: int) -> float:
    """The share, 0 to 1, of those that this class costs next to nothing: neighbours have the benefit of the
    doubt."""
    return float(shares[COSTS[:, said] <= LITTLE].sum() / shares.sum())
