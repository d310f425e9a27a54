"""The contexts that a model was made from, by the names of their functions, kept in its file. From them
`mayfly bind` computes how much of the model another build shares (lifetime/src/model/bind.rs)."""

from pathlib import Path

import numpy as np

from train.data.contexts import Contexts
from train.data.symbols import Ranges
from train.data.tokens import functions_of
from train.model import model_file
from train.model.recipe import MOST_FRAMES

# Left out: it is only on the stacks of the heap's own slow path, and is of another build whenever Mayfly is.
_HEAP = "libmayfly_heap.so"


def packed(data: Contexts, files: list[Ranges]) -> tuple[np.ndarray, list[str]]:
    """The model file's section: names of functions, the files that each is in, and the bytes and functions of
    each context, without code that has no name. And the path of each file that has functions of these
    contexts; of other files it is empty."""
    numbers: dict[str, int] = {}
    contexts: dict[tuple[int, ...], int] = {}
    for stack, size in zip(data.stacks, data.bytes.tolist(), strict=True):
        names = [name for frame in stack[:MOST_FRAMES] for name in functions_of(frame) if name]
        functions = tuple(numbers.setdefault(name, len(numbers)) for name in names)
        contexts[functions] = contexts.get(functions, 0) + int(size)
    paths = [""] * len(files)
    homes: list[list[int]] = [[] for _ in numbers]
    for number, file in enumerate(files):
        there = {name for frame in set(file.names) for name in functions_of(frame)}
        met = there & numbers.keys() if Path(file.path).name != _HEAP else ()
        for name in met:
            homes[numbers[name]].append(number)
        if met:
            paths[number] = file.path
    section = model_file.packed_names(
        {
            "functions": list(numbers),
            "files": homes,
            "contexts": [[size, functions] for functions, size in contexts.items()],
        }
    )
    return section, paths
