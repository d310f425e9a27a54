"""Where contexts are few, a table of them predicts as well as a network, and is made in a second. Lookups
work as in the heap (lifetime/model/src/table.rs): a context is the sequence of its functions, innermost
first. Inlined functions count like others, so the sequence is the same with another compiler. The longest
prefix that the table has decides. Where contexts of that prefix die at different times it has no class, and
the heap learns online, as it does for unknown contexts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

import numpy as np

from train.data.contexts import Contexts
from train.data.dataset import CLASS_NAMES
from train.data.tokens import functions_of, without_arguments
from train.model import costs, model_file, recipe
from train.model.model_file import LIMITS_MS, MOST_ROWS, STEP_ENDS, TABLE, Model
from train.model.recipe import Recipe

NAME = recipe.TABLE
MOST_FUNCTIONS = 32
"""Functions of a context that count, innermost first."""
USUAL = Recipe(NAME)
UNKNOWN = 0
NO_CLASS = 255
# A prefix gets a class if this share of the bytes of its contexts is of that class.
AGREEING = 0.95
# So many contexts that agree decide for all contexts of their prefix.
ENOUGH_CONTEXTS = 3
# Fewer decide only if the prefix lacks at most this many of their outermost functions: those call `main` or
# begin a thread, and differ from one C library to the next.
OUTERMOST = 3

_WORD = (1 << 64) - 1
_START = 0x243F6A8885A308D3
_MULTIPLIER = 0x9E3779B97F4A7C15


def entries(names: list[str]):
    """A function from a frame's name to its entries in the file's `steps`."""
    numbers = {name: number for number, name in enumerate(names) if number != UNKNOWN}
    # A function whose arguments changed is still the same one, if its name is unique.
    alike = Counter(map(without_arguments, numbers))
    bare = {without_arguments(name): number for name, number in numbers.items()}
    bare = {name: number for name, number in bare.items() if alike[name] == 1}

    def of_frame(frame: str) -> tuple[int, ...]:
        known = [
            numbers.get(name) or bare.get(without_arguments(name), UNKNOWN) for name in functions_of(frame)
        ]
        # All unknown functions are alike.
        return tuple(number | STEP_ENDS for number in (known if any(known) else [UNKNOWN]))

    return of_frame


def keys(functions: Iterable[int]) -> Iterator[int]:
    """The key of each prefix of a context."""
    key = _START
    for function in functions:
        key = ((key ^ (function + 1)) * _MULTIPLIER) & _WORD
        key ^= key >> 32
        yield key


def make(data: Contexts, made_by: Recipe = USUAL) -> Model:
    """The table of these contexts, without functions' addresses."""
    stacks = [
        [name for frame in stack for name in functions_of(frame)][:MOST_FUNCTIONS] for stack in data.stacks
    ]
    # Code without a name is unknown code.
    names = ["", *sorted({name for stack in stacks for name in stack if name})[: MOST_ROWS - 1]]
    numbers = {name: number for number, name in enumerate(names)}
    sequences = [[numbers.get(name, UNKNOWN) for name in stack] for stack in stacks]
    class_of: dict[int, int] = {}
    _divide(class_of, sequences, data, list(range(len(sequences))), 0, made_by.by_costs)
    ordered = sorted(class_of)
    return Model(
        encoder=TABLE,
        hidden=0,
        most_frames=MOST_FUNCTIONS,
        outermost_first=False,
        metadata={},
        modules=[],
        limits=LIMITS_MS,
        keys=np.array(ordered, np.uint64),
        outputs=np.array([class_of[key] for key in ordered], np.uint8),
        functions=len(names),
        names=model_file.packed_names([NAME, names, []]),
    )


def _divide(
    class_of: dict, sequences: list, data: Contexts, members: list[int], depth: int, by_costs: bool
) -> None:
    """Adds to the table the prefixes of length `depth` + 1 of these contexts, whose shorter ones are equal,
    and longer ones where these do not decide."""
    by_next: dict[int, list[int]] = {}
    for member in members:
        if len(sequences[member]) > depth:
            by_next.setdefault(sequences[member][depth], []).append(member)
    for alike in by_next.values():
        *_, key = keys(sequences[alike[0]][: depth + 1])
        shares = np.bincount(data.labels[alike], data.bytes[alike], len(CLASS_NAMES))
        predicted = int(shares.argmax())
        agree = shares[predicted] >= AGREEING * shares.sum()
        whole = all(len(sequences[member]) == depth + 1 for member in alike)
        near_end = all(len(sequences[member]) <= depth + 1 + OUTERMOST for member in alike)
        enough = near_end or len(alike) >= ENOUGH_CONTEXTS
        nearly = False
        if by_costs and not agree:
            # Where no longer prefix is known, neighbouring classes count as agreement.
            predicted = costs.cheapest(shares)
            nearly = enough and costs.near_share(shares, predicted) >= AGREEING
        # Contexts whose functions are all the same differ in lines of code only: they get the class of most
        # bytes.
        is_decided = whole or agree and enough
        class_of[key] = predicted if is_decided or nearly else NO_CLASS
        if not is_decided:
            _divide(class_of, sequences, data, alike, depth + 1, by_costs)


def predict(model: Model, stacks: Iterable[list[str]]) -> np.ndarray:
    """The class of each context, (N,) in int32; -1 where the table does not know it."""
    of_frame = entries(model_file.unpacked_names(model.names)[1])
    return _looked_up(model, ((of_frame(frame) for frame in stack) for stack in stacks))


def predict_frames(model: Model, contexts: Iterable[list[int]]) -> np.ndarray:
    """The same for contexts given as frames of the file."""
    of_frame = [model.steps[first:behind].tolist() for first, behind in pairwise(model.frames.tolist())]
    return _looked_up(model, ((of_frame[frame] for frame in frames) for frames in contexts))


def _looked_up(model: Model, contexts: Iterable[Iterable[Iterable[int]]]) -> np.ndarray:
    classes = dict(zip(model.keys.tolist(), model.outputs.tolist(), strict=True))
    found = []
    for steps in contexts:
        functions = [step & ~STEP_ENDS for frame in islice(steps, model.most_frames) for step in frame]
        last = NO_CLASS
        for key in keys(functions[:MOST_FUNCTIONS]):
            if key not in classes:
                break
            last = classes[key]
        found.append(-1 if last == NO_CLASS else last)
    return np.array(found, np.int32)
