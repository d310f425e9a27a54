"""How good predictions are: the paper's accuracies (LLAMA Table 3, Fig. 10) and a confusion matrix."""

from dataclasses import dataclass

import numpy as np

from train.data.contexts import Contexts
from train.data.dataset import CLASS_NAMES
from train.model.costs import COSTS


@dataclass
class Accuracy:
    """Shares, 0 to 1: of bytes, which decide how much memory is used, of allocations, as in the paper, and of
    contexts. `near` ones also count a prediction that is off by one class as right. A context that a table
    does not know counts as wrong."""

    contexts: int
    bytes: float
    bytes_near: float
    bytes_known: float
    allocations: float
    allocations_near: float
    unweighted: float
    unweighted_near: float
    outlived: float
    """Of the bytes with a prediction, those that live longer than predicted: they keep pages from being
    freed."""
    cost: float
    """The average cost of a byte of them (train/model/costs.py)."""
    confusion: np.ndarray
    """Share of all bytes, by true and predicted class."""

    def as_dict(self) -> dict[str, float | int]:
        """By flat keys: shares in percent, `contexts` a number, `cost` as it is."""
        shares = {
            "bytes": self.bytes,
            "bytes_off_by_one": self.bytes_near,
            "bytes_known": self.bytes_known,
            "weighted": self.allocations,
            "unweighted": self.unweighted,
            "weighted_off_by_one": self.allocations_near,
            "unweighted_off_by_one": self.unweighted_near,
            "bytes_outlived": self.outlived,
        }
        return (
            {"contexts": self.contexts}
            | {f"{name}_percent": round(100 * share, 2) for name, share in shares.items()}
            | {"cost": round(self.cost, 4)}
        )

    def in_words(self) -> str:
        """In one line for people."""
        return f"right for {100 * self.bytes:.1f}% of bytes, within a class for {100 * self.bytes_near:.1f}%"


def accuracy(contexts: Contexts, predicted: np.ndarray) -> Accuracy | None:
    """Of these contexts and the class predicted of each, (N,), -1 being no prediction; `None` where there is
    nothing to measure on."""
    if not len(contexts):
        return None
    allocated, weights = contexts.bytes / contexts.bytes.sum(), contexts.weights / contexts.weights.sum()
    known = predicted >= 0
    right, near = contexts.labels == predicted, known & (np.abs(contexts.labels - predicted) <= 1)
    confusion = np.zeros((len(CLASS_NAMES), len(CLASS_NAMES)))
    np.add.at(confusion, (contexts.labels[known], predicted[known]), allocated[known])
    prices = COSTS[contexts.labels, predicted] * known
    of_known = max(float(allocated @ known), 1e-12)
    return Accuracy(
        len(contexts),
        float(allocated @ right),
        float(allocated @ near),
        float(allocated @ known),
        float(weights @ right),
        float(weights @ near),
        float(right.mean()),
        float(near.mean()),
        float(allocated @ (known & (contexts.labels > predicted))) / of_known,
        float(allocated @ prices) / of_known,
        confusion,
    )


def plot(measured: Accuracy, path: str, title: str) -> None:
    """Draws the confusion matrix; a row adds up to 100% of the bytes of its class, less those that a table
    does not know."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "mayfly"
    from matplotlib import pyplot

    totals = measured.confusion.sum(axis=1, keepdims=True)
    shares = 100 * np.divide(
        measured.confusion, totals, out=np.zeros_like(measured.confusion), where=totals > 0
    )
    figure, axes = pyplot.subplots(figsize=(6, 5.4), layout="constrained")
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    for true in range(len(CLASS_NAMES)):
        for predicted in range(len(CLASS_NAMES)):
            if totals[true] and shares[true, predicted] >= 0.05:
                colour = "white" if shares[true, predicted] > 60 else "black"
                text = f"{shares[true, predicted]:.1f}".removesuffix(".0")
                axes.text(predicted, true, text, ha="center", va="center", color=colour, fontsize=9)
    names = [f"{name}\n{100 * share:.1f}%" for name, share in zip(CLASS_NAMES, totals[:, 0], strict=True)]
    axes.set_xticks(range(len(CLASS_NAMES)), CLASS_NAMES)
    axes.set_yticks(range(len(CLASS_NAMES)), names)
    axes.set_xlabel("predicted lifetime class")
    axes.set_ylabel("true class, and its share of bytes")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, label="% of the class's bytes", shrink=0.8)
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    pyplot.close(figure)
