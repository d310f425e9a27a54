"""The whole way from profiles to a model file and its accuracy."""

from dataclasses import dataclass

import numpy as np

from train import contexts, export, measure, symbols, training
from train.contexts import Contexts
from train.dataset import HELD_OUT, TRAIN, VALIDATION
from train.encoders import ENCODERS, Encoder
from train.errors import TrainError
from train.measure import Accuracy
from train.model_file import MOST_ROWS, Model
from train.predictor import Predictor
from train.tokens import RESERVED, Vocabulary
from train.training import Examples, Outcome

MOST_FRAMES = 32
"""Frames of a context that are read, innermost first."""


@dataclass(frozen=True)
class Recipe:
    """All that a model depends on besides the profiles."""

    encoder: str
    hidden: int = 64
    vocabulary: int = 5000
    epochs: int = 100
    seed: int = 1


@dataclass
class Trained:
    """An encoder with its weights, and how good it is before it is rounded to 8 bits."""

    encoder: Encoder
    outcome: Outcome
    held_out: Accuracy | None


def train_encoder(data: Contexts, recipe: Recipe, show: bool) -> Trained:
    """Trains one encoder; `data` has all three parts."""
    learned = data.part(TRAIN)
    if not len(learned):
        raise TrainError("no context falls into the part to train on: profile for longer")
    stacks = [stack[:MOST_FRAMES] for stack in learned.stacks]
    # A frame counts once for each context that it is in.
    vocabulary = Vocabulary.of((frame for stack in stacks for frame in stack), recipe.vocabulary)
    room = MOST_ROWS - recipe.vocabulary - len(RESERVED)
    counts: dict[str, int] = {}
    for stack in stacks:
        for frame in stack:
            counts[frame] = counts.get(frame, 0) + 1
    seen = sorted(counts, key=lambda frame: (-counts[frame], frame))[:room]
    encoder = ENCODERS[recipe.encoder](vocabulary, seen, recipe.hidden)
    parts = {name: data.part(name) for name in (TRAIN, VALIDATION, HELD_OUT)}
    examples = {name: _examples(encoder, part) for name, part in parts.items()}
    outcome = training.train(encoder, examples[TRAIN], examples[VALIDATION], recipe.seed, recipe.epochs, show)
    held_out = parts[HELD_OUT]
    predicted = training.scores(encoder, outcome.weights, examples[HELD_OUT].steps).argmax(axis=1)
    return Trained(encoder, outcome, measure.accuracy(held_out.labels, predicted, held_out.weights))


def _examples(encoder: Encoder, part: Contexts) -> Examples:
    steps = [encoder.table.steps.of(stack[:MOST_FRAMES]) for stack in part.stacks]
    return Examples(steps, part.labels, training.say_in_training(part.weights))


def predict(model: Model, frames: dict[str, int], data: Contexts) -> np.ndarray:
    """The classes that a model file gives these contexts, its functions known by name."""
    numbers = [[frames.get(frame, export.UNKNOWN_FRAME) for frame in stack] for stack in data.stacks]
    return Predictor(model).scores(numbers).argmax(axis=1)


@dataclass
class Made:
    """A model and what is known about it."""

    model: Model
    trained: Trained
    held_out: Accuracy | None
    data: Contexts


def make(engine: str, paths: list[str], recipe: Recipe, show: bool) -> Made:
    """From profiles to a model, measured as it is in the file on contexts that it has not seen."""
    data = contexts.load(engine, paths)
    contexts.refuse_too_little(data)
    files = symbols.load(engine, paths)
    trained = train_encoder(data, recipe, show)
    model, frames = export.export(trained.encoder, trained.outcome.weights, files, MOST_FRAMES)
    held_out = data.part(HELD_OUT)
    measured = measure.accuracy(held_out.labels, predict(model, frames, held_out), held_out.weights)
    model.metadata = {
        "made_by": "mayfly train",
        "encoder": recipe.encoder,
        "hidden": recipe.hidden,
        "vocabulary": len(trained.encoder.table.steps.vocabulary),
        "seed": recipe.seed,
        "epochs": trained.outcome.best_epoch,
        "contexts": len(data),
        "held_out": measured.as_dict() if measured else None,
    }
    return Made(model, trained, measured, data)
