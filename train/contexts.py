"""The dataset in memory: labelled contexts, and its three parts."""

from dataclasses import dataclass

import numpy as np

from train import profiles
from train.dataset import CLASS_NAMES, labelled_contexts
from train.errors import TrainError

FRAME_SEPARATOR = "@"
# Fewer distinct contexts than this are no data set: a table of them would do.
FEWEST = 20


@dataclass
class Contexts:
    """Distinct contexts, in the order of their text."""

    stacks: list[list[str]]
    labels: np.ndarray
    weights: np.ndarray
    samples: np.ndarray
    splits: np.ndarray

    def __len__(self) -> int:
        return len(self.stacks)

    def part(self, *splits: str) -> "Contexts":
        """Those in any of these parts of the split."""
        places = np.flatnonzero(np.isin(self.splits, splits))
        stacks = [self.stacks[place] for place in places]
        return Contexts(
            stacks, self.labels[places], self.weights[places], self.samples[places], self.splits[places]
        )

    def frames(self) -> list[str]:
        """Every frame of every stack."""
        return [frame for stack in self.stacks for frame in stack]


def load(engine: str, paths: list[str]) -> Contexts:
    """The contexts of these profiles, computed with `engine`."""
    with profiles.engine(engine) as connection:
        table = profiles.collect(labelled_contexts(profiles.read(connection, paths)), paths)
    return Contexts(
        [stack.split(FRAME_SEPARATOR) for stack in table["stack"].to_pylist()],
        table["label"].to_numpy().astype(np.int32),
        table["weight"].to_numpy().astype(np.float64),
        table["samples"].to_numpy(),
        np.array(table["split"].to_pylist(), dtype="U16"),
    )


def refuse_too_little(contexts: Contexts) -> None:
    """Says so where there is nothing to learn."""
    if len(contexts) < FEWEST:
        raise TrainError(
            f"the profiles have {len(contexts)} distinct contexts with known lifetimes, "
            f"{FEWEST} are the least: profile for longer, or with a smaller --every"
        )
    met = np.unique(contexts.labels)
    if len(met) == 1:
        name = CLASS_NAMES[met[0]]
        raise TrainError(
            f"all {len(contexts)} contexts have lifetime class {name}: nothing to learn; "
            f"'mayfly run --lifetimes fixed:{name}' does the same"
        )
