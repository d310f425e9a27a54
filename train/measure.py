"""How good predictions are: the paper's accuracies (LLAMA Table 3, Fig. 10) and a confusion matrix."""

from dataclasses import dataclass

import numpy as np

from train.dataset import CLASS_NAMES


@dataclass
class Accuracy:
    """Shares of contexts, 0 to 1; `weighted` ones by allocations; `near` ones also count a prediction that
    is off by one class as right."""

    contexts: int
    weighted: float
    unweighted: float
    weighted_near: float
    unweighted_near: float
    confusion: np.ndarray
    """Share of all allocations, by true and predicted class."""

    def as_dict(self) -> dict[str, float | int]:
        return {
            "contexts": self.contexts,
            "weighted_percent": round(100 * self.weighted, 2),
            "unweighted_percent": round(100 * self.unweighted, 2),
            "weighted_off_by_one_percent": round(100 * self.weighted_near, 2),
            "unweighted_off_by_one_percent": round(100 * self.unweighted_near, 2),
        }


def accuracy(labels: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> Accuracy | None:
    """`None` where there is nothing to measure on."""
    if not len(labels):
        return None
    weights = weights.astype(np.float64) / weights.sum()
    right, near = labels == predicted, np.abs(labels - predicted) <= 1
    confusion = np.zeros((len(CLASS_NAMES), len(CLASS_NAMES)))
    np.add.at(confusion, (labels, predicted), weights)
    return Accuracy(
        len(labels),
        float(weights @ right),
        float(right.mean()),
        float(weights @ near),
        float(near.mean()),
        confusion,
    )


def plot(measured: Accuracy, path: str, title: str) -> None:
    """Draws the confusion matrix; a row adds up to 100% of the allocations of its class."""
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
    axes.set_ylabel("true class, and its share of allocations")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, label="% of the class's allocations", shrink=0.8)
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    pyplot.close(figure)
