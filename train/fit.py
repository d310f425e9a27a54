"""The whole way from profiles to a model file. How good it is is measured on contexts held out of training;
the model that is written then learns from all of them."""

from dataclasses import dataclass

import numpy as np

from train import contexts, export, measure, symbols, training
from train.contexts import A_FIFTH, EACH_ONCE, Contexts, Fold
from train.encoders import Encoder
from train.measure import Accuracy
from train.model_file import MOST_ROWS, Model
from train.predictor import Predictor
from train.symbols import Ranges
from train.tokens import RESERVED, Vocabulary
from train.training import Examples, Outcome

MOST_FRAMES = 32
"""Frames of a context that are read, innermost first."""
# With fewer contexts than this a fifth of them says little: then each is held out once, in ten trainings.
FEW_CONTEXTS = 1000


@dataclass(frozen=True)
class Recipe:
    """All that a model depends on besides the profiles."""

    encoder: str
    hidden: int = 64
    vocabulary: int = 5000
    rounds: int = 100
    seed: int = 1


@dataclass
class Measured:
    """How good an encoder is on contexts that it has not learned from: as trained, and as its file is."""

    as_trained: Accuracy | None
    of_file: Accuracy | None
    of_file_many_samples: Accuracy | None
    """Of contexts with so many samples that 5% of them is one at least: the others' T95 is their longest."""
    rounds: int
    seconds: float


ENOUGH_SAMPLES = 20


def new_encoder(data: Contexts, recipe: Recipe) -> Encoder:
    """An encoder that knows the names in these contexts."""
    counts: dict[str, int] = {}
    for stack in data.stacks:
        for frame in stack[:MOST_FRAMES]:
            counts[frame] = counts.get(frame, 0) + 1
    # A token counts once for each frame of each context that it is in.
    vocabulary = Vocabulary.of(counts, recipe.vocabulary)
    seen = sorted(counts, key=lambda frame: (-counts[frame], frame))
    room = MOST_ROWS - recipe.vocabulary - len(RESERVED)
    return Encoder(recipe.encoder, recipe.hidden, vocabulary, seen[:room])


def examples(encoder: Encoder, data: Contexts) -> Examples:
    """Contexts as the encoder reads them."""
    steps = [encoder.steps.of(stack[:MOST_FRAMES]) for stack in data.stacks]
    return Examples(steps, data.labels, training.say_in_training(data.weights))


def folds_for(data: Contexts) -> list[Fold]:
    """The folds to measure by."""
    return EACH_ONCE if len(data) < FEW_CONTEXTS else A_FIFTH


def measured(data: Contexts, recipe: Recipe, show: bool, export_too: bool) -> Measured:
    """Trains on some contexts and measures on others."""
    told, predicted, rounded = [], [], []
    outcomes: list[Outcome] = []
    for fold in folds_for(data):
        split = data.split(fold)
        if not len(split.learn) or not len(split.held_out):
            continue
        encoder = new_encoder(split.learn, recipe)
        learn, held_out = examples(encoder, split.learn), examples(encoder, split.held_out)
        stop_by = examples(encoder, split.stop_by) if len(split.stop_by) else None
        rounds = recipe.rounds if stop_by else min(recipe.rounds, training.ROUNDS_OF_FEW)
        outcome = training.train(encoder, learn, stop_by, recipe.seed, rounds, show)
        outcomes.append(outcome)
        told.append(split.held_out)
        predicted.append(training.scores(encoder, outcome.weights, held_out.steps).argmax(axis=1))
        if export_too:
            frames = sorted({frame for stack in split.held_out.stacks for frame in stack})
            model, numbers = export.export(encoder, outcome.weights, [Ranges.of_names(frames)], MOST_FRAMES)
            rounded.append(predict(model, numbers, split.held_out))
    labels, weights, samples = (
        np.concatenate([getattr(part, name) for part in told] or [np.zeros(0, np.int32)])
        for name in ("labels", "weights", "samples")
    )
    all_predicted = np.concatenate(predicted or [np.zeros(0, np.int32)])
    all_rounded = np.concatenate(rounded or [all_predicted])
    many = samples >= ENOUGH_SAMPLES
    return Measured(
        measure.accuracy(labels, all_predicted, weights),
        measure.accuracy(labels, all_rounded, weights),
        measure.accuracy(labels[many], all_rounded[many], weights[many]),
        int(np.median([outcome.rounds for outcome in outcomes] or [recipe.rounds])),
        sum(outcome.seconds for outcome in outcomes),
    )


def predict(model: Model, frames: dict[str, int], data: Contexts) -> np.ndarray:
    """The classes that a model file gives these contexts, its functions known by name."""
    numbers = [[frames.get(frame, export.UNKNOWN_FRAME) for frame in stack] for stack in data.stacks]
    return Predictor(model).scores(numbers).argmax(axis=1)


@dataclass
class Made:
    """A model and what is known about it."""

    model: Model
    data: Contexts
    held_out: Measured
    all: Accuracy
    """Of all contexts, with the model that is written, which has learned from them."""


def make(engine: str, paths: list[str], recipe: Recipe, show: bool) -> Made:
    """From profiles to a model."""
    data = contexts.load(engine, paths)
    contexts.refuse_too_little(data)
    files = symbols.load(engine, paths)
    held_out = measured(data, recipe, show, export_too=True)
    encoder = new_encoder(data, recipe)
    outcome = training.train(encoder, examples(encoder, data), None, recipe.seed, held_out.rounds, show)
    model, frames = export.export(encoder, outcome.weights, files, MOST_FRAMES)
    of_all = measure.accuracy(data.labels, predict(model, frames, data), data.weights)
    model.metadata = {
        "made_by": "mayfly train",
        "encoder": recipe.encoder,
        "hidden": recipe.hidden,
        "vocabulary": len(encoder.steps.vocabulary),
        "seed": recipe.seed,
        "rounds": held_out.rounds,
        "contexts": len(data),
        "held_out": held_out.of_file.as_dict() if held_out.of_file else None,
        "all": of_all.as_dict(),
    }
    return Made(model, data, held_out, of_all)
