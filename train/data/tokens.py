"""From names to numbers (LLAMA §5.2): a stack's frames are split into tokens at special characters, and the
most common tokens have a number each; all others are UNK. Names are taken apart only here: the model file
holds the result for each function, so a running program needs no names."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

UNKNOWN = 0
"""The number of every token that is not in the vocabulary."""
FRAME_END = 1
"""The number of `@`, which separates frames."""
RESERVED = ("UNK", "@")
ANONYMOUS = "[anonymous]"
"""A frame in code that is in no file, generated at run time (lifetime/src/code/symbols.rs). To the heap it is
unknown code, and so it is here: it has no tokens."""

# Every character beyond ASCII is part of a word, so lifetime/src/model/names.rs can do the same without
# tables.
_LETTER = r"[0-9A-Za-z_\x80-\U0010ffff]"
_WORD = re.compile(f"~?{_LETTER}+")
# A compiler's suffixes, different in each build: rustc's hash, and the numbers of GCC's clones.
_BUILD_SPECIFIC = re.compile(
    rf"::h[0-9a-f]{{16}}(?!{_LETTER})| \[clone [^]]*\]"
    r"|\.(?:isra|constprop|part|cold|lto_priv|llvm)(?:\.[0-9]+)*"
)


def plain(name: str) -> str:
    """A name without the parts that differ in each build; empty for code that has no name."""
    return "" if name == ANONYMOUS else _BUILD_SPECIFIC.sub("", name)


def functions_of(frame: str) -> list[str]:
    """The functions of a frame, innermost first, without the parts that differ from build to build."""
    return [plain(name) for name in frame.split(";")]


def without_arguments(function: str) -> str:
    """A C++ function's name without its arguments, which a revision may change."""
    end = function.rfind(")")
    if end < 0 or ">" in function[end:] or ":" in function[end:]:
        return function
    depth = 0
    for at in range(end, -1, -1):
        depth += (function[at] == ")") - (function[at] == "(")
        if depth == 0:
            return function[:at] or function
    return function


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
        """The `size` most common tokens of these frames; of equally common ones, the first by alphabet. A
        token that occurs only once carries no information, and as UNK it trains the vector of UNK."""
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
