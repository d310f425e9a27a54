"""Where contexts are few, a table of them says as much as a network, and is made in a second. It is looked up
as the heap does it (lifetime/model/src/table.rs): a context is the sequence of its functions, innermost
first, those that were inlined being functions like others, so that it is the same with another compiler; the
longest beginning of it that the table has decides. Where that does not say a class, because contexts that
begin so die at different times, and where nothing is known, the heap learns online."""

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
"""Functions of a context that are looked at, innermost first."""
USUAL = Recipe(NAME)
UNKNOWN = 0
NOT_TOLD = 255
# The share of the bytes of contexts that begin alike that must be of one class for it to be theirs.
AGREEING = 0.95
# So many contexts that begin alike, and agree, stand for all that begin so.
ENOUGH_CONTEXTS = 3
# Fewer stand for themselves, whatever the outermost functions are: those call `main` or begin a thread, and
# differ from one C library to the next.
OUTERMOST = 3

_WORD = (1 << 64) - 1
_START = 0x243F6A8885A308D3
_MULTIPLIER = 0x9E3779B97F4A7C15


def entries(names: list[str]):
    """A function from a frame's name to its entries in the file's `steps`."""
    numbers = {name: number for number, name in enumerate(names) if number != UNKNOWN}
    # One whose arguments changed is still the same function, if there is but one of its name.
    alike = Counter(map(without_arguments, numbers))
    bare = {without_arguments(name): number for name, number in numbers.items()}
    bare = {name: number for name, number in bare.items() if alike[name] == 1}

    def of_frame(frame: str) -> tuple[int, ...]:
        known = [
            numbers.get(name) or bare.get(without_arguments(name), UNKNOWN) for name in functions_of(frame)
        ]
        # Nothing that is not known differs from anything else that is not.
        return tuple(number | STEP_ENDS for number in (known if any(known) else [UNKNOWN]))

    return of_frame


def keys(functions: Iterable[int]) -> Iterator[int]:
    """The key of each beginning of a context."""
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
    # What has no name is what is not known.
    names = ["", *sorted({name for stack in stacks for name in stack if name})[: MOST_ROWS - 1]]
    numbers = {name: number for number, name in enumerate(names)}
    sequences = [[numbers.get(name, UNKNOWN) for name in stack] for stack in stacks]
    told: dict[int, int] = {}
    _divide(told, sequences, data, list(range(len(sequences))), 0, made_by.by_costs)
    ordered = sorted(told)
    return Model(
        encoder=TABLE,
        hidden=0,
        most_frames=MOST_FUNCTIONS,
        outermost_first=False,
        metadata={},
        modules=[],
        limits=LIMITS_MS,
        keys=np.array(ordered, np.uint64),
        outputs=np.array([told[key] for key in ordered], np.uint8),
        functions=len(names),
        names=model_file.packed_names([NAME, names, []]),
    )


def _divide(
    told: dict, sequences: list, data: Contexts, members: list[int], depth: int, by_costs: bool
) -> None:
    """Puts the beginnings of length `depth` + 1 of these contexts, which are alike before, into the table,
    and longer ones where these do not tell enough."""
    by_next: dict[int, list[int]] = {}
    for member in members:
        if len(sequences[member]) > depth:
            by_next.setdefault(sequences[member][depth], []).append(member)
    for alike in by_next.values():
        *_, key = keys(sequences[alike[0]][: depth + 1])
        shares = np.bincount(data.labels[alike], data.bytes[alike], len(CLASS_NAMES))
        said = int(shares.argmax())
        agree = shares[said] >= AGREEING * shares.sum()
        whole = all(len(sequences[member]) == depth + 1 for member in alike)
        near_end = all(len(sequences[member]) <= depth + 1 + OUTERMOST for member in alike)
        enough = near_end or len(alike) >= ENOUGH_CONTEXTS
        nearly = False
        if by_costs and not agree:
            # Neighbouring classes have the benefit of the doubt, where no longer beginning is known.
            said = costs.cheapest(shares)
            nearly = enough and costs.near_share(shares, said) >= AGREEING
        # Contexts whose functions are all the same differ in lines of code only: they get what fits most
        # bytes.
        is_told = whole or agree and enough
        told[key] = said if is_told or nearly else NOT_TOLD
        if not is_told:
            _divide(told, sequences, data, alike, depth + 1, by_costs)


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
        last = NOT_TOLD
        for key in keys(functions[:MOST_FUNCTIONS]):
            if key not in classes:
                break
            last = classes[key]
        found.append(-1 if last == NOT_TOLD else last)
    return np.array(found, np.int32)
