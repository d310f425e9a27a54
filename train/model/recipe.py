"""The settings that a model depends on, besides the profiles."""

from dataclasses import dataclass, replace

from train.data.contexts import Contexts

MOST_FRAMES = 32
"""Frames of a context that are read, innermost first."""
# With fewer contexts than this a table predicts as well as a network. A fifth of them is too few to measure
# on, so each is held out once, in ten trainings.
FEW_CONTEXTS = 1000
# Rounds of training where there are too few contexts to decide when to stop.
ROUNDS_OF_FEW = 30
TABLE = "table"
BY_NUMBER = "auto"
"""In place of an encoder: the one that fits the number of contexts."""


@dataclass(frozen=True)
class Recipe:
    """All that a model depends on besides the profiles."""

    encoder: str
    hidden: int = 64
    vocabulary: int = 5000
    rounds: int = 100
    seed: int = 1
    by_costs: bool = False
    """Confusions count by their cost in pages, and not all alike (train/model/costs.py)."""

    def chosen_for(self, data: Contexts) -> "Recipe":
        """The recipe with an encoder for so many contexts."""
        if self.encoder != BY_NUMBER:
            return self
        return replace(self, encoder=TABLE if len(data) < FEW_CONTEXTS else "lstm-frames")

    @property
    def is_table(self) -> bool:
        """Whether it makes a table, and needs no network."""
        return self.encoder == TABLE
