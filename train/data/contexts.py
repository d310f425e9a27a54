"""The dataset in memory: labelled contexts, and its three parts."""

from dataclasses import dataclass

import numpy as np

from train.data import profiles
from train.data.dataset import CLASS_NAMES, TENTHS, labelled_contexts
from train.errors import TrainError

FRAME_SEPARATOR = "@"
# With fewer than this, chance would decide when training ends.
FEWEST_TO_STOP_BY = 50

Fold = tuple[int, ...]
"""The tenths that a training is measured on."""


@dataclass
class Contexts:
    """Distinct contexts, in the order of their text."""

    stacks: list[list[str]]
    labels: np.ndarray
    weights: np.ndarray
    """Allocations."""
    bytes: np.ndarray
    samples: np.ndarray
    tenths: np.ndarray

    def __len__(self) -> int:
        return len(self.stacks)

    def chosen(self, which: np.ndarray) -> "Contexts":
        """The contexts where `which` is true."""
        places = np.flatnonzero(which)
        stacks = [self.stacks[place] for place in places]
        arrays = (self.labels, self.weights, self.bytes, self.samples, self.tenths)
        return Contexts(stacks, *(array[places] for array in arrays))

    def joined_by(self, other: "Contexts") -> "Contexts":
        """These contexts and those of `other`."""
        names = ("labels", "weights", "bytes", "samples", "tenths")
        arrays = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in names)
        return Contexts(self.stacks + other.stacks, *arrays)

    def split(self, tenths: Fold) -> "Split":
        """The contexts to learn from, to stop training by (none where they would be too few), and to measure
        on: these tenths."""
        held_out = np.isin(self.tenths, tenths)
        stop_by = self.tenths == (tenths[-1] + 1) % TENTHS
        if stop_by.sum() < FEWEST_TO_STOP_BY:
            stop_by[:] = False
        return Split(self.chosen(~held_out & ~stop_by), self.chosen(stop_by), self.chosen(held_out))


@dataclass
class Split:
    """Three parts that have no context in common."""

    learn: Contexts
    stop_by: Contexts
    held_out: Contexts


A_FIFTH: list[Fold] = [(0, 1)]
EACH_ONCE: list[Fold] = [(tenth,) for tenth in range(TENTHS)]


def load(engine: str, paths: list[str]) -> Contexts:
    """The contexts of these profiles, computed with `engine`. Raises TrainError for files that cannot be
    read."""
    with profiles.engine(engine) as connection:
        table = profiles.collect(labelled_contexts(profiles.read(connection, paths)), paths)
    return Contexts(
        [stack.split(FRAME_SEPARATOR) for stack in table["stack"].to_pylist()],
        table["label"].to_numpy().astype(np.int32),
        table["weight"].to_numpy().astype(np.float64),
        table["bytes"].to_numpy().astype(np.float64),
        table["samples"].to_numpy(),
        table["tenth"].to_numpy().astype(np.int32),
    )


def refuse_none(contexts: Contexts) -> None:
    """Raises TrainError where no lifetime is known."""
    if not len(contexts):
        raise TrainError(
            "the profiles have no contexts with known lifetimes: profile for longer, "
            "or with a smaller --every"
        )


def refuse_too_little(contexts: Contexts) -> None:
    """Raises TrainError where there is nothing to learn: no lifetimes, or all of one class."""
    refuse_none(contexts)
    met = np.unique(contexts.labels)
    if len(met) == 1:
        name = CLASS_NAMES[met[0]]
        what = "the only context has" if len(contexts) == 1 else f"all {len(contexts)} contexts have"
        raise TrainError(
            f"{what} lifetime class {name}: nothing to learn; "
            f"'mayfly run --lifetimes fixed:{name}' does the same"
        )
