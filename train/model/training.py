"""Training (LLAMA §5.2): Adam, clipped gradients, and a loss of cross-entropy and the cost of confusions,
weighted by how often a context allocates. Contexts of similar length go into one batch. Training stops when
contexts set aside for it are predicted no better for a while."""

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
# Rounds without a better result on the contexts set aside until training ends.
PATIENCE = 10
# A context's weight in the loss grows with the root of its allocations. In proportion to them, a handful of
# contexts would decide everything; without them, the many that hardly allocate (§5.1 duplicates frequent ones
# for this).
WEIGHT_POWER = 0.5
MOST_WEIGHT = 1000.0
# The expected cost of a confusion is added to the cross-entropy with this weight: the right class is still
# the best answer, and the others differ by their effect on pages.
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
    """The result of training: the weights of the best round, its number, and the seconds of all rounds."""

    weights: Weights
    rounds: int
    seconds: float


@dataclass
class Batch:
    """Contexts computed at once: steps (BATCH, T), lengths, labels and weights (BATCH,)."""

    steps: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


jax.tree_util.register_dataclass(Batch, ["steps", "lengths", "labels", "weights"], [])


def loss_weights(weights: np.ndarray) -> np.ndarray:
    """The weight of each context in the loss, 1 on average: (N,) from their allocations, (N,)."""
    if not len(weights):
        return np.zeros(0, np.float32)
    tempered = np.maximum(weights, 1).astype(np.float64) ** WEIGHT_POWER
    tempered = np.minimum(tempered / np.median(tempered), MOST_WEIGHT)
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
    """Trains from fresh weights: for at most so many rounds, or exactly so many without contexts to stop by.
    Raises TrainError where the loss is not finite."""
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
        mean_loss = float(total) / (passes * learn.weights.sum())
        if judging:
            losses = [float(judge(weights, constants, batch)) for batch in judging]
            mean_loss = sum(losses) / stop_by.weights.sum()
        progress.detail(f"round {number} of {rounds} at most, loss {mean_loss:.3f}")
        if not np.isfinite(mean_loss):
            raise TrainError(
                f"the loss is {mean_loss} after {number} rounds: the profile cannot be learned from"
            )
        if not judging or mean_loss < best_loss:
            best, best_round, best_loss = weights, number, mean_loss
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
