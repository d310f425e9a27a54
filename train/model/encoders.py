"""Networks from a calling context to lifetime classes, in JAX. Each is a set of initial weights and a
function from steps to scores; whatever depends on one step alone is a row of a table (LLAMA §10's partial
evaluation): training computes the table once a batch, the model file holds it multiplied out.

In shapes N are contexts, T the steps of the longest, R the steps that there are (a table has a row for
each), H the units of the network. Steps are int32, all else float32; of a context with fewer than T steps
those from its length on are ignored."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from train.data.tokens import Vocabulary
from train.model.stacks import FrameSteps, TokenSteps

EMBEDDING = 32
"""Length of a token's vector (§5.2)."""
CLASSES = 7
# How often training treats a frame that it has seen as new, so that its tokens learn to represent it.
FORGET_FRAME = 0.3

Weights = dict[str, jax.Array]


def _glorot(key: jax.Array, rows: int, columns: int) -> jax.Array:
    return jax.nn.initializers.glorot_uniform()(key, (rows, columns))


def _embedding(key: jax.Array, rows: int) -> jax.Array:
    return jax.random.normal(key, (rows, EMBEDDING)) * 0.1


# The vector of a step.


class TokenTable:
    """A step is a token: its vector is its row of the embedding matrix A (§5.2)."""

    def initial(self, key: jax.Array, tokens: int, frames: int) -> Weights:
        """The embedding matrix A: (tokens, EMBEDDING)."""
        return {"tokens": _embedding(key, tokens)}

    def vectors(self, weights: Weights, constants: tuple, key: jax.Array | None) -> jax.Array:
        """Its rows: (tokens, EMBEDDING)."""
        return weights["tokens"]


class FrameTable:
    """A step is a frame: its vector is the sum of its tokens' vectors, and of its own if training saw it.
    With a sum the model file needs rows for tokens and for frames seen, and none for all other functions."""

    def initial(self, key: jax.Array, tokens: int, frames: int) -> Weights:
        """Vectors of tokens and of frames that training saw: (tokens, EMBEDDING) and (frames, EMBEDDING)."""
        return {"tokens": _embedding(key, tokens), "frames": jnp.zeros((frames, EMBEDDING))}

    def vectors(self, weights: Weights, constants: tuple, key: jax.Array | None) -> jax.Array:
        """The vectors of all frames met, by `Encoder.constants`: (frames met, EMBEDDING). With a key, some
        frames are treated as new."""
        tokens, counts, seen = constants
        shown = jnp.arange(tokens.shape[1]) < counts[:, None]
        meaning = jnp.sum(weights["tokens"][tokens] * shown[..., None], axis=1)
        own = weights["frames"]
        own = own * (jnp.arange(own.shape[0]) < seen)[:, None]
        if key is not None:
            own = own * jax.random.bernoulli(key, 1 - FORGET_FRAME, (own.shape[0], 1))
        return meaning + jnp.pad(own, ((0, tokens.shape[0] - own.shape[0]), (0, 0)))


# From steps to scores.


@dataclass(frozen=True)
class Recurrence:
    """A single-layer LSTM whose last state goes through a fully connected layer (§5.2). Gates: input,
    forget, cell, output."""

    hidden: int

    def initial(self, key: jax.Array) -> Weights:
        """Weights of 4H gates and of the last layer."""
        inputs, recurrent, dense = jax.random.split(key, 3)
        bias = jnp.zeros(4 * self.hidden).at[self.hidden : 2 * self.hidden].set(1.0)
        return {
            "inputs": _glorot(inputs, EMBEDDING, 4 * self.hidden),
            "bias": bias,
            "recurrent": jax.nn.initializers.orthogonal()(recurrent, (self.hidden, 4 * self.hidden)),
            "dense": _glorot(dense, self.hidden, CLASSES),
            "dense_bias": jnp.zeros(CLASSES),
        }

    def rows(self, weights: Weights, vectors: jax.Array) -> jax.Array:
        """The input half of the gates for every step there is: (R, 4H)."""
        return vectors @ weights["inputs"]

    def scores(self, weights: Weights, rows: jax.Array, steps: jax.Array, lengths: jax.Array) -> jax.Array:
        """The last layer over the last state: (N, CLASSES)."""

        def advance(state, now):
            hidden, cell = state
            step, live = now
            gates = rows[step] + weights["bias"] + hidden @ weights["recurrent"]
            opened, kept, new, shown = jnp.split(gates, 4, axis=1)
            cell_next = jax.nn.sigmoid(kept) * cell + jax.nn.sigmoid(opened) * jnp.tanh(new)
            hidden_next = jax.nn.sigmoid(shown) * jnp.tanh(cell_next)
            live = live[:, None]
            return (jnp.where(live, hidden_next, hidden), jnp.where(live, cell_next, cell)), None

        start = jnp.zeros((steps.shape[0], self.hidden))
        live = jnp.arange(steps.shape[1]) < lengths[:, None]
        (hidden, _), _ = jax.lax.scan(advance, (start, start), (steps.T, live.T))
        return hidden @ weights["dense"] + weights["dense_bias"]


@dataclass(frozen=True)
class Network:
    """The vectors of steps, and the recurrence over them, for any profile."""

    table: TokenTable | FrameTable
    shape: Recurrence

    def rows(self, weights: Weights, constants: tuple, key: jax.Array | None = None) -> jax.Array:
        """The row of every step in the model file: (R, its width); with a key, as training varies it."""
        return self.shape.rows(weights, self.table.vectors(weights, constants, key))

    def scores(self, weights, constants, steps, lengths, key=None) -> jax.Array:
        """The scores of each class: (N, CLASSES) of steps (N, T) and lengths (N,)."""
        return self.shape.scores(weights, self.rows(weights, constants, key), steps, lengths)


_TABLES = {"lstm-frames": FrameTable, "lstm-tokens": TokenTable}
ENCODERS = tuple(_TABLES)


@functools.cache
def network(name: str, hidden: int) -> Network:
    """One of ENCODERS, H units wide; KeyError for another name."""
    return Network(_TABLES[name](), Recurrence(hidden))


class Encoder:
    """A network and the names that it is for: `seen` are the frames of the contexts to learn from, `vectors`
    the initial vectors of the tokens, if they are known."""

    def __init__(
        self,
        name: str,
        hidden: int,
        vocabulary: Vocabulary,
        seen: Iterable[str],
        vectors: np.ndarray | None = None,
    ):
        self.name, self.hidden, self.vectors = name, hidden, vectors
        self.network = network(name, hidden)
        by_frame = isinstance(self.network.table, FrameTable)
        self.steps = FrameSteps(vocabulary, seen) if by_frame else TokenSteps(vocabulary)

    def initial(self, seed: int) -> Weights:
        """Fresh weights, by the seed alone."""
        table, shape = jax.random.split(jax.random.key(seed))
        frames = _roomy(self.steps.seen) if isinstance(self.steps, FrameSteps) else 0
        weights = self.network.table.initial(table, _roomy(len(self.steps.vocabulary)), frames)
        if self.vectors is not None:
            weights["tokens"] = weights["tokens"].at[: len(self.vectors)].set(self.vectors)
        return weights | self.network.shape.initial(shape)

    def constants(self) -> tuple:
        """The tokens of every frame met so far (frames, tokens of one), how many each has (frames,), and how
        many frames were seen in training; nothing where a step is a token."""
        if not isinstance(self.steps, FrameSteps):
            return ()
        tokens, counts = self.steps.tokens()
        missing = max(_roomy(len(tokens)), _roomy(self.steps.seen)) - len(tokens)
        width = -(-tokens.shape[1] // 16) * 16
        tokens = np.pad(tokens, ((0, missing), (0, width - tokens.shape[1])))
        return tokens, np.pad(counts, (0, missing)), np.int32(self.steps.seen)


def _roomy(count: int) -> int:
    """Rounds up, so that profiles of about the same size have the same shapes and nothing is compiled
    anew."""
    return -(-count // 512) * 512


def padded(steps: list[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences as one array of int32, (N, width), zeros behind, and their lengths, (N,). ValueError where
    one is longer than `width`."""
    rows = np.zeros((len(steps), width), np.int32)
    for row, sequence in zip(rows, steps, strict=True):
        row[: len(sequence)] = sequence
    return rows, np.array([len(sequence) for sequence in steps], np.int32)
