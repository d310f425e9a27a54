"""Contexts as the heap sees them in a running program: addresses in files, not names of functions. A model's
predictions for addresses are those that the heap can use; by names they are those after `mayfly bind`."""

from dataclasses import dataclass

import numpy as np

from train.data import contexts, profiles, symbols
from train.data.contexts import FRAME_SEPARATOR, Contexts
from train.errors import TrainError
from train.model import table
from train.model.model_file import TABLE, Model
from train.model.predictor import Predictor, frame_at

_NEEDED = {"stack": "text", "frames": "bytes", "allocations": "numbers", "bytes": "numbers"}
_NAMED = {"module": "numbers", "build_id": "text"}
_MODULE_SHIFT = np.uint64(48)
_OFFSET = np.uint64((1 << 48) - 1)
# The heap follows a model only if it has the files of this share of the frames
# (heap/src/lifetime/model_validation.rs).
_TRUSTED = 2 / 3

Place = tuple[bytes, int]
"""A file's build-id, and an address in it; of a call, the one before that to which it returns."""


@dataclass
class LocatedContexts:
    """Contexts distinguished by their addresses; several may have the same names."""

    contexts: Contexts
    places: list[tuple[Place, ...]]


def load(engine: str, paths: list[str]) -> LocatedContexts:
    """The contexts of these profiles, each with the class of all contexts of its names. Raises TrainError for
    files that cannot be read or are damaged."""
    by_name = contexts.load(engine, paths)
    number = {FRAME_SEPARATOR.join(stack): place for place, stack in enumerate(by_name.stacks)}
    sums: dict[tuple[int, tuple[Place, ...]], list[int]] = {}
    for path in paths:
        with profiles.engine(engine) as connection:
            hint = "name the .parquet file that 'mayfly profile' wrote"
            read = profiles.open_table(connection, path, _NEEDED, hint).select(*_NEEDED)
            modules = profiles.open_table(connection, symbols.beside(path), _NAMED, f"it belongs to {path}")
            rows = profiles.collect(read, [path]).to_pylist()
            files = profiles.collect(modules.select(*_NAMED).distinct(), [path]).to_pylist()
        build_ids = {file["module"]: symbols.build_id_of(file["build_id"]) for file in files}
        for row in rows:
            if row["stack"] not in number:
                continue  # its lifetimes are not known
            if len(row["frames"]) % 8:
                raise TrainError(f"{path}: column frames ends within a number: the file is damaged")
            frames = np.frombuffer(row["frames"], "<u8")
            ids = [build_ids.get(module, b"") for module in (frames >> _MODULE_SHIFT).tolist()]
            addresses = ((frames & _OFFSET) - np.uint64(1)).tolist()
            context = number[row["stack"]], tuple(zip(ids, addresses, strict=True))
            total = sums.setdefault(context, [0, 0])
            total[0] += round(row["allocations"])
            total[1] += round(row["bytes"])
    which = np.array([place for place, _ in sums], np.int64)
    allocations, sizes = np.array(list(sums.values()), np.float64).reshape(-1, 2).T
    located = Contexts(
        [by_name.stacks[place] for place in which],
        by_name.labels[which],
        np.maximum(allocations, 1),
        np.maximum(sizes, 1),
        by_name.samples[which],
        by_name.tenths[which],
    )
    return LocatedContexts(located, [places for _, places in sums])


def known_frames(model: Model, run: LocatedContexts) -> float:
    """The share of frames, 0 to 1, in files that the model has; code generated at run time is in no file."""
    has = {bytes(module.build_id) for module in model.modules}
    met = [build_id in has for places in run.places for build_id, _ in places if build_id]
    return sum(met) / len(met) if met else 1.0


def predict(model: Model, run: LocatedContexts) -> np.ndarray:
    """The classes that the heap gives these contexts, (N,); -1 where it learns online: everywhere, if the
    model is of another build."""
    if known_frames(model, run) < _TRUSTED:
        return np.full(len(run.places), -1, np.int32)
    known: dict[Place, int] = {}
    for place in {place for places in run.places for place in places}:
        known[place] = frame_at(model, *place)
    numbers = [[known[place] for place in places] for places in run.places]
    if model.encoder == TABLE:
        return table.predict_frames(model, numbers)
    return Predictor(model).scores(numbers).argmax(axis=1)
