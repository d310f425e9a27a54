"""From names to numbers (LLAMA §5.2): a stack's frames are split into tokens at special characters, and the
most common tokens have a number each; all others are UNK. This is the only place where names are taken
apart: the model file carries the result for each function, so that a running program never sees a name."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

UNKNOWN = 0
"""The number of every token that is not in the vocabulary."""
FRAME_END = 1
"""The number of `@`, which separates frames."""
RESERVED = ("UNK", "@")

_WORD = re.compile(r"~?\w+")
# What a compiler adds to a name, different in each build: rustc's hash, and the numbers of GCC's clones.
_BUILD_SPECIFIC = re.compile(
    r"::h[0-9a-f]{16}\b| \[clone [^]]*\]|\.(?:isra|constprop|part|cold|lto_priv|llvm)(?:\.\d+)*"
)


def plain(name: str) -> str:
    """A name without what is different in each build."""
    return _BUILD_SPECIFIC.sub("", name)


def tokenize(frame: str) -> list[str]:
    """The tokens of one frame, in the order in which they stand."""
    return _WORD.findall(plain(frame))


class Vocabulary:
    """The tokens that have a number of their own."""

    def __init__(self, tokens: Iterable[str]):
        self.tokens = [*RESERVED, *tokens]
        self._numbers = {token: number for number, token in enumerate(self.tokens) if number >= len(RESERVED)}

    @classmethod
    def of(cls, frames: Iterable[str], size: int) -> "Vocabulary":
        """The `size` most common tokens of these frames; of equally common ones, the first by alphabet. One
        that is met only once tells nothing, and being UNK it teaches what UNK means."""
        counts = Counter(token for frame in frames for token in tokenize(frame))
        common = [(token, count) for token, count in counts.items() if count > 1]
        ranked = sorted(common, key=lambda item: (-item[1], item[0]))
        return cls(token for token, _ in ranked[:size])

    def __len__(self) -> int:
        return len(self.tokens)

    def numbers(self, frame: str) -> list[int]:
        """The tokens of one frame as numbers, without the `@` after it."""
        return [self._numbers.get(token, UNKNOWN) for token in tokenize(frame)]

    def sequence(self, frames: Iterable[str]) -> Iterator[int]:
        """A whole stack as the paper's model reads it: frame by frame, an `@` after each."""
        for frame in frames:
            yield from self.numbers(frame)
            yield FRAME_END
