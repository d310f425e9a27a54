"""Stacks as numbers, for encoders that read one step a token (`TokenSteps`, LLAMA §5.2) and for those that
read one step a frame (`FrameSteps`, §10)."""

from collections.abc import Iterable

import numpy as np

from train.data.tokens import FRAME_END, UNKNOWN, Vocabulary

# Tokens of one frame that count. Longer names are C++ templates, which repeat themselves.
FRAME_TOKENS = 64


class TokenSteps:
    """Each token is a step, and so is the `@` after each frame."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    def of(self, stack: list[str]) -> np.ndarray:
        """The steps of a stack, int32, one for each token and frame."""
        return np.concatenate([self.of_frame(frame) for frame in stack])

    def of_frame(self, frame: str) -> np.ndarray:
        """The steps of one frame, its end the last."""
        return np.array([*self.vocabulary.numbers(frame)[:FRAME_TOKENS], FRAME_END], np.int32)


class FrameSteps:
    """Each frame is a step. A frame is known by the set of its tokens, and those that training saw also by
    themselves: a frame that is new is still understood by its tokens."""

    def __init__(self, vocabulary: Vocabulary, seen: Iterable[str]):
        self.vocabulary = vocabulary
        self.frames: dict[str, int] = {}
        for frame in seen:
            self.frames.setdefault(frame, len(self.frames))
        self.seen = len(self.frames)

    def of(self, stack: list[str]) -> np.ndarray:
        """The steps of a stack, int32, one for each frame; a frame that is new gets the next number."""
        return np.array([self.frames.setdefault(frame, len(self.frames)) for frame in stack], np.int32)

    def tokens_of(self, frame: str) -> list[int]:
        """The distinct tokens of a frame; UNK where it has none."""
        return list(dict.fromkeys(self.vocabulary.numbers(frame)))[:FRAME_TOKENS] or [UNKNOWN]

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """For each frame met so far: its tokens, (frames, most tokens of one) padded with zeros, and how many
        they are, (frames,)."""
        rows = [self.tokens_of(frame) for frame in self.frames]
        table = np.zeros((len(rows), max(map(len, rows), default=1)), np.int32)
        for row, numbers in zip(table, rows, strict=True):
            row[: len(numbers)] = numbers
        return table, np.array([len(row) for row in rows], np.int32)
