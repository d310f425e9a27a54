"""Trains and writes networks. Only modules imported from here need JAX, which is large: a table does without
(train/model/optional_deps.py)."""

import numpy as np

from train.data.contexts import Contexts, Split
from train.data.symbols import Ranges
from train.data.tokens import RESERVED, Vocabulary
from train.model import export, training
from train.model.encoders import Encoder
from train.model.model_file import MOST_ROWS, Model
from train.model.recipe import MOST_FRAMES, ROUNDS_OF_FEW, Recipe
from train.model.training import Examples, Outcome

Known = tuple[Vocabulary, np.ndarray]
"""Tokens and their initial vectors."""


def new_encoder(data: Contexts, recipe: Recipe, known: Known | None = None) -> Encoder:
    """An encoder that knows the names in these contexts, or tokens that were known before."""
    counts: dict[str, int] = {}
    for stack in data.stacks:
        for frame in stack[:MOST_FRAMES]:
            counts[frame] = counts.get(frame, 0) + 1
    # A token counts once for each frame of each context that it is in.
    vocabulary, vectors = known or (Vocabulary.of(counts, recipe.vocabulary), None)
    seen = sorted(counts, key=lambda frame: (-counts[frame], frame))
    room = MOST_ROWS - recipe.vocabulary - len(RESERVED)
    return Encoder(recipe.encoder, recipe.hidden, vocabulary, seen[:room], vectors)


def examples(encoder: Encoder, data: Contexts) -> Examples:
    """Contexts in the encoder's form."""
    steps = [encoder.steps.of(stack[:MOST_FRAMES]) for stack in data.stacks]
    return Examples(steps, data.labels, training.loss_weights(data.weights))


def trial(split: Split, recipe: Recipe, known: Known | None = None) -> tuple[Encoder, np.ndarray, Outcome]:
    """Learns from one part, and predicts the classes of the part that is held out, (N,). Raises TrainError
    where the loss is not finite."""
    encoder = new_encoder(split.learn, recipe, known)
    learn = examples(encoder, split.learn)
    stop_by = examples(encoder, split.stop_by) if len(split.stop_by) else None
    rounds = recipe.rounds if stop_by else min(recipe.rounds, ROUNDS_OF_FEW)
    outcome = training.train(encoder, learn, stop_by, recipe.seed, rounds, recipe.by_costs)
    return encoder, classes(encoder, outcome, split.held_out), outcome


def file_for(encoder: Encoder, outcome: Outcome, files: list[Ranges]) -> tuple[Model, dict[str, int]]:
    """The model file of the trained encoder, for these files; and the frame of each name."""
    return export.export(encoder, outcome.weights, files, MOST_FRAMES)


def file_for_frames(encoder: Encoder, outcome: Outcome, frames: list[str]) -> tuple[Model, dict[str, int]]:
    """The same for these frames, wherever they are."""
    return file_for(encoder, outcome, [Ranges.of_names(frames)])


def learned(data: Contexts, recipe: Recipe, rounds: int) -> tuple[Encoder, Outcome]:
    """An encoder trained on all contexts, for so many rounds."""
    encoder = new_encoder(data, recipe)
    learn = examples(encoder, data)
    return encoder, training.train(encoder, learn, None, recipe.seed, rounds, recipe.by_costs)


def classes(encoder: Encoder, outcome: Outcome, data: Contexts) -> np.ndarray:
    """The classes of contexts by names, (N,), before rounding."""
    return training.scores(encoder, outcome.weights, examples(encoder, data).steps).argmax(axis=1)
