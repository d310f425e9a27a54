"""From profiles to a model file. Its accuracy is measured on a run that it has not learned from, if there are
several, and on contexts held out of training; the model that is written then learns from all of them."""

import functools
import os
import time
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from train import progress
from train.data import contexts, symbols
from train.data.contexts import A_FIFTH, EACH_ONCE, Contexts, Fold, Split
from train.model import build_overlap, link, measure, optional_deps, table
from train.model.measure import Accuracy
from train.model.model_file import TABLE, Model
from train.model.predictor import Predictor
from train.model.recipe import FEW_CONTEXTS, ROUNDS_OF_FEW, Recipe


@dataclass
class Measured:
    """An encoder's accuracy on contexts that it has not learned from: as trained, and as its file
    predicts."""

    as_trained: Accuracy | None
    of_file: Accuracy | None
    of_file_many_samples: Accuracy | None
    """Of contexts with so many samples that 5% of them is at least one: the T95 of others is their longest
    life."""
    rounds: int
    seconds: float


ENOUGH_SAMPLES = 20


def folds_for(data: Contexts) -> list[Fold]:
    """The folds to measure by."""
    return EACH_ONCE if len(data) < FEW_CONTEXTS else A_FIFTH


@dataclass
class Trial:
    """The classes predicted for one part's contexts by a model of another part."""

    as_trained: np.ndarray
    of_file: np.ndarray
    rounds: int
    seconds: float


def trial(split: Split, recipe: Recipe, export_too: bool) -> Trial:
    """Learns from one part, and predicts the classes of the part that is held out."""
    begun = time.monotonic()
    if recipe.is_table:
        found = table.predict(table.make(split.learn.joined_by(split.stop_by), recipe), split.held_out.stacks)
        return Trial(found, found, 0, time.monotonic() - begun)
    networks = optional_deps.networks()
    encoder, predicted, outcome = networks.trial(split, recipe)
    rounded = predicted
    if export_too:
        frames = sorted({frame for stack in split.held_out.stacks for frame in stack})
        rounded = predict(*networks.file_for_frames(encoder, outcome, frames), split.held_out)
    return Trial(predicted, rounded, outcome.rounds, outcome.seconds)


def measured(data: Contexts, recipe: Recipe, export_too: bool) -> Measured:
    """Trains on some contexts and measures on others."""
    splits = [data.split(fold) for fold in folds_for(data)]
    splits = [split for split in splits if len(split.learn) and len(split.held_out)]
    if not splits:
        return Measured(None, None, None, min(recipe.rounds, ROUNDS_OF_FEW), 0)
    trials = [trial(split, recipe, export_too) for split in splits]
    held_out = functools.reduce(Contexts.joined_by, (split.held_out for split in splits))
    predicted = np.concatenate([each.as_trained for each in trials])
    rounded = np.concatenate([each.of_file for each in trials])
    many = held_out.samples >= ENOUGH_SAMPLES
    return Measured(
        measure.accuracy(held_out, predicted),
        measure.accuracy(held_out, rounded),
        measure.accuracy(held_out.chosen(many), rounded[many]),
        int(np.median([each.rounds for each in trials])),
        sum(each.seconds for each in trials),
    )


def on_another_run(engine: str, paths: list[str], recipe: Recipe) -> Accuracy | None:
    """Accuracy on runs that the model has not learned from: the last of each folder that has several, or of
    all. `None` for one profile."""
    last = [list(of_one)[1:][-1:] for _, of_one in groupby(sorted(paths), os.path.dirname)]
    held_out = [path for some in last for path in some] or paths[1:][-1:]
    if not held_out:
        return None
    others = [path for path in paths if path not in held_out]
    if not others:
        return None
    learn = contexts.load(engine, others)
    other = contexts.load(engine, held_out)
    if not len(learn) or not len(other):
        return None
    stop_by = learn.split(contexts.A_FIFTH[0])
    split = Split(learn, learn.chosen(np.zeros(len(learn), bool)), other)
    if len(stop_by.stop_by):
        split = Split(stop_by.learn.joined_by(stop_by.held_out), stop_by.stop_by, other)
    return measure.accuracy(other, trial(split, recipe, export_too=True).of_file)


def predict(model: Model, frames: dict[str, int], data: Contexts) -> np.ndarray:
    """The classes that a model file gives these contexts, (N,), its functions known by name; -1 where a table
    has none."""
    if model.encoder == TABLE:
        return table.predict(model, data.stacks)
    numbers = [[frames.get(frame, link.UNKNOWN_FRAME) for frame in stack] for stack in data.stacks]
    return Predictor(model).scores(numbers).argmax(axis=1)


@dataclass
class Made:
    """A model and its measurements."""

    model: Model
    recipe: Recipe
    data: Contexts
    other_run: Accuracy | None
    held_out: Measured
    all: Accuracy
    """Of all contexts, with the model that is written, which has learned from them."""


def make(engine: str, paths: list[str], recipe: Recipe) -> Made:
    """From profiles to a model. Raises TrainError for profiles that cannot be read, or that have nothing to
    learn."""
    with progress.stage(f"reading {len(paths)} {'profile' if len(paths) == 1 else 'profiles'}"):
        data = contexts.load(engine, paths)
        contexts.refuse_too_little(data)
    recipe = recipe.chosen_for(data)
    if not recipe.is_table:
        optional_deps.networks()
    if recipe.is_table:
        estimate = measure.accuracy(data, table.predict(table.make(data, recipe), data.stacks))
        progress.say(f"first estimate, on the contexts learned from: {estimate.in_words()}")
    with progress.stage(f"learning from {len(data):,} contexts, to measure on others"):
        held_out = measured(data, recipe, export_too=True)
    if held_out.of_file and not recipe.is_table:
        progress.say(f"first estimate, on contexts not learned from: {held_out.of_file.in_words()}")
    with progress.stage("learning from all runs but one, to measure on that"):
        other_run = on_another_run(engine, paths, recipe)
    with progress.stage("naming the functions of all files"):
        files = symbols.load(engine, paths)
    with progress.stage("learning from all, and writing the model"):
        if recipe.is_table:
            model = table.make(data, recipe)
            frames = link.link(model, files)
        else:
            networks = optional_deps.networks()
            encoder, outcome = networks.learned(data, recipe, held_out.rounds)
            model, frames = networks.file_for(encoder, outcome, files)
        model.seen, places = build_overlap.packed(data, files)
        of_all = measure.accuracy(data, predict(model, frames, data))
    model.metadata = {
        "made_by": "mayfly train",
        "encoder": recipe.encoder,
        "contexts": len(data),
        "files": places,
        "other_run": other_run.as_dict() if other_run else None,
        "held_out": held_out.of_file.as_dict() if held_out.of_file else None,
        "all": of_all.as_dict(),
    }
    if not recipe.is_table:
        model.metadata |= {
            "hidden": recipe.hidden,
            "vocabulary": len(encoder.steps.vocabulary),
            "seed": recipe.seed,
            "by_costs": recipe.by_costs,
            "rounds": held_out.rounds,
        }
    return Made(model, recipe, data, other_run, held_out, of_all)
