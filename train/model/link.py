"""Gives the code of a file its steps, by the names of its functions. A model's file keeps these names, so
that other builds get their steps, too. `mayfly bind` does the same where there is no profile
(lifetime/src/model/names.rs, lifetime/src/model/bind.rs)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from train.data.symbols import Ranges
from train.data.tokens import RESERVED, Vocabulary, plain
from train.model import model_file, table
from train.model.model_file import STEP_ENDS, Model, Module
from train.model.stacks import FrameSteps, TokenSteps

UNKNOWN_FRAME = 0
"""The frame of code that no table knows."""


@dataclass
class Names:
    """The names that a model knows, kept in its file: with them, functions of other builds get their
    steps."""

    encoder: str
    tokens: list[str]
    frames: list[str]

    def packed(self) -> np.ndarray:
        """Its section of the model file: bytes, as uint8."""
        return model_file.packed_names([self.encoder, self.tokens, self.frames])

    @classmethod
    def of(cls, model: Model) -> "Names":
        """The names in a model's file."""
        return cls(*model_file.unpacked_names(model.names))

    def entries(self) -> Callable[[str], tuple[int, ...]]:
        """A function from a frame's name to its entries in the file's `steps`."""
        if self.encoder == table.NAME:
            return table.entries(self.tokens)
        vocabulary = Vocabulary(self.tokens[len(RESERVED) :])
        if self.encoder == "lstm-tokens":
            by_token = TokenSteps(vocabulary)
            return lambda frame: tuple(int(row) | STEP_ENDS for row in by_token.of_frame(frame))
        by_frame = FrameSteps(vocabulary, self.frames)
        by_plain: dict[str, int] = {}
        for frame, row in by_frame.frames.items():
            by_plain.setdefault(plain(frame), row)

        def of_frame(frame: str) -> tuple[int, ...]:
            own = by_frame.frames.get(frame, by_plain.get(plain(frame)))
            rows = by_frame.tokens_of(frame) if own is None else [len(vocabulary) + own]
            return (*rows[:-1], rows[-1] | STEP_ENDS)

        return of_frame


def link(model: Model, files: Iterable[Ranges]) -> dict[str, int]:
    """Gives a model the functions of these files, in place of those that it has; returns the frame of each
    name."""
    entries_of = Names.of(model).entries()
    # Frames of the same steps are one; the first is that of unknown code.
    numbers = {entries_of(""): UNKNOWN_FRAME}
    by_name: dict[str, int] = {}
    modules, starts, range_frames = [], [], []
    for file in files:
        first, reached, before = len(starts), 0, None
        for start, end, name in zip(file.starts.tolist(), file.ends.tolist(), file.names, strict=True):
            if start < reached:
                continue  # a second name for the same code
            if name not in by_name:
                entries = entries_of(name)
                by_name[name] = numbers.setdefault(entries, len(numbers))
            frame = by_name[name]
            if start > reached and before not in (None, UNKNOWN_FRAME):
                starts.append(reached)
                range_frames.append(UNKNOWN_FRAME)
                before = UNKNOWN_FRAME
            if frame != before:
                starts.append(start)
                range_frames.append(frame)
            reached, before = end, frame
        if before not in (None, UNKNOWN_FRAME) and reached < 1 << 32:
            starts.append(reached)
            range_frames.append(UNKNOWN_FRAME)
        modules.append(Module(file.build_id, first, len(starts) - first))
    lengths = [len(entries) for entries in numbers]
    model.modules = modules
    model.starts = np.array(starts, np.uint32)
    model.range_frames = np.array(range_frames, np.uint32)
    model.frames = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
    model.steps = np.array([entry for entries in numbers for entry in entries], np.uint16)
    return by_name
