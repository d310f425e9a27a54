"""Training (LLAMA §5.2): Adam, clipped gradients, cross-entropy and what confusions cost, weighted by how
often a context allocates; contexts of like length go into one batch; stops when contexts set aside for it are
predicted no better for a while."""

import functools
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train import progress
from train.errors import TrainError
from train.model.costs import COSTS
from train.model.encoders import CLASSES, Encoder, Network, Weights, padded

LEARNING_RATE = 0.001
CLIP = 5.0
BATCH = 64
# A round goes over all contexts once, or more often where that would be fewer updates than this.
ROUND_UPDATES = 50
# Rounds without a better result on the contexts to stop by until training ends.
PATIENCE = 10
# A context's say in training grows with the root of its allocations: with all of them a handful of contexts
# would be all that is learned, with none the many that hardly allocate (§5.1 duplicates frequent ones for
# this).
WEIGHT_POWER = 0.5
MOST_SAY = 1000.0
# What a confusion is expected to cost is added to the cross-entropy with this weight: the right class is
# still the best answer, and the others differ by what they do to pages.
COST_WEIGHT = 0.075


@dataclass
class Examples:
    """Contexts as sequences of steps (int32), their classes (N,), and how much each counts (N,)."""

    steps: list[np.ndarray]
    labels: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class Outcome:
    """What training ends with: the weights of the best round, which that was, and how long all took."""

    weights: Weights
    rounds: int
    seconds: float


@dataclass
class Batch:
    """What is computed at once: steps (BATCH, T), lengths, labels and weights (BATCH,)."""

    steps: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


jax.tree_util.register_dataclass(Batch, ["steps", "lengths", "labels", "weights"], [])


def say_in_training(weights: np.ndarray) -> np.ndarray:
    """How much each context counts in the loss, 1 on average: (N,) of their allocations, (N,)."""
    if not len(weights):
        return np.zeros(0, np.float32)
    tempered = np.maximum(weights, 1).astype(np.float64) ** WEIGHT_POWER
    tempered = np.minimum(tempered / np.median(tempered), MOST_SAY)
    return (tempered / tempered.mean()).astype(np.float32)


def batches(examples: Examples, order: np.ndarray) -> list[Batch]:
    """Full batches of contexts whose lengths round up to the same power of two; the last of each is filled
    with rows that count nothing, so that only a few shapes are ever compiled."""
    widths = np.array([max(16, 1 << int(len(examples.steps[i]) - 1).bit_length()) for i in order], np.int64)
    made = []
    for width in np.unique(widths):
        members = order[widths == width]
        for first in range(0, len(members), BATCH):
            chosen = members[first : first + BATCH]
            filling = BATCH - len(chosen)
            steps = [examples.steps[i] for i in chosen] + [np.zeros(1, np.int32)] * filling
            made.append(
                Batch(
                    *padded(steps, int(width)),
                    np.pad(examples.labels[chosen], (0, filling)).astype(np.int32),
                    np.pad(examples.weights[chosen], (0, filling)).astype(np.float32),
                )
            )
    return made


@functools.cache
def _compiled(network: Network, by_costs: bool):
    """One update of the weights, and the loss of a batch: compiled once for a network, whatever it learns
    from."""
    prices = jnp.asarray(COSTS, jnp.float32)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(LEARNING_RATE))

    def loss(weights, constants, batch, key):
        scores = network.scores(weights, constants, batch.steps, batch.lengths, key)
        each = optax.softmax_cross_entropy_with_integer_labels(scores, batch.labels)
        if by_costs:
            expected = jnp.sum(jax.nn.softmax(scores) * prices[batch.labels], axis=1)
            each += COST_WEIGHT * expected
        return jnp.sum(each * batch.weights)

    @jax.jit
    def update(weights, state, constants, batch, key):
        value, gradients = jax.value_and_grad(loss)(weights, constants, batch, key)
        gradients = jax.tree.map(lambda each: each / BATCH, gradients)
        changes, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    judge = jax.jit(lambda weights, constants, batch: loss(weights, constants, batch, None))
    return optimizer.init, update, judge


def train(
    encoder: Encoder,
    learn: Examples,
    stop_by: Examples | None,
    seed: int,
    rounds: int,
    by_costs: bool = False,
) -> Outcome:
    """Trains from fresh weights: for at most so many rounds, for exactly so many if there are none to stop
    by. Raises TrainError where the loss is not finite."""
    begun = time.monotonic()
    start, update, judge = _compiled(encoder.network, by_costs)
    constants = encoder.constants()
    judging = batches(stop_by, np.arange(len(stop_by))) if stop_by else []
    weights = encoder.initial(seed)
    state = start(weights)
    random = np.random.default_rng(seed)
    key = jax.random.key(seed + 1)
    best, best_round, best_loss = weights, 0, np.inf
    for number in range(1, rounds + 1):
        total, updates, passes = 0.0, 0, 0
        while updates < ROUND_UPDATES:
            made = batches(learn, random.permutation(len(learn)))
            for place in random.permutation(len(made)):
                key, now = jax.random.split(key)
                weights, state, value = update(weights, state, constants, made[place], now)
                total += value
            updates += len(made)
            passes += 1
        told = float(total) / (passes * learn.weights.sum())
        if judging:
            told = sum(float(judge(weights, constants, batch)) for batch in judging) / stop_by.weights.sum()
        progress.detail(f"round {number} of {rounds} at most, loss {told:.3f}")
        if not np.isfinite(told):
            raise TrainError(
                f"the loss is {told} after {number} rounds: the profile has what cannot be learned"
            )
        if not judging or told < best_loss:
            best, best_round, best_loss = weights, number, told
        elif number - best_round >= PATIENCE:
            break
    return Outcome(best, best_round, time.monotonic() - begun)


@functools.cache
def _compiled_scores(network: Network):
    return jax.jit(network.rows), jax.jit(network.shape.scores)


def scores(encoder: Encoder, weights: Weights, steps: list[np.ndarray]) -> np.ndarray:
    """The encoder's scores for each class and context, (N, CLASSES), in floating point."""
    rows_of, judge = _compiled_scores(encoder.network)
    rows = rows_of(weights, encoder.constants())
    examples = Examples(steps, np.arange(len(steps)), np.ones(len(steps), np.float32))
    found = np.zeros((len(steps), CLASSES), np.float32)
    for batch in batches(examples, np.arange(len(steps))):
        real = batch.weights > 0
        found[batch.labels[real]] = np.asarray(judge(weights, rows, batch.steps, batch.lengths))[real]
    return found
