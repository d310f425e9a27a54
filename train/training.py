"""Training (LLAMA §5.2): Adam, clipped gradients, cross-entropy weighted by how often a context allocates;
contexts of like length go into one batch; stops when contexts set aside for it are predicted no better for
a while."""

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from train.encoders import Encoder, Weights, padded

LEARNING_RATE = 0.001
CLIP = 5.0
BATCH = 64
# Epochs without a better result on the validation contexts until training ends.
PATIENCE = 12
# A context's say in training grows with the root of its allocations: with all of them a handful of contexts
# would be all that is learned, with none the many that hardly allocate (§5.1 duplicates frequent ones for
# this).
WEIGHT_POWER = 0.5
MOST_TOLD = 1000.0


@dataclass
class Examples:
    """Contexts as sequences of steps, their classes, and how much each counts."""

    steps: list[np.ndarray]
    labels: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class Outcome:
    """What training ends with: the weights of the best epoch, and how it went."""

    weights: Weights
    epochs: int
    best_epoch: int
    seconds: float


@dataclass
class Batch:
    steps: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def say_in_training(weights: np.ndarray) -> np.ndarray:
    """How much each context counts in the loss, 1 on average."""
    tempered = np.maximum(weights, 1).astype(np.float64) ** WEIGHT_POWER
    tempered = np.minimum(tempered / np.median(tempered), MOST_TOLD)
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


def train(
    encoder: Encoder,
    learn: Examples,
    validate: Examples,
    seed: int,
    epochs: int,
    show: bool,
    fixed: bool = False,
) -> Outcome:
    """Trains from fresh weights. With `fixed`, for exactly `epochs` epochs, without regard to `validate`."""
    begun = time.monotonic()
    constants = encoder.table.constants()
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(LEARNING_RATE))

    def loss(weights, constants, batch, key):
        scores = encoder.scores(weights, constants, batch.steps, batch.lengths, key)
        each = optax.softmax_cross_entropy_with_integer_labels(scores, batch.labels)
        return jnp.sum(each * batch.weights)

    @jax.jit
    def update(weights, state, constants, batch, key):
        value, gradients = jax.value_and_grad(loss)(weights, constants, batch, key)
        gradients = jax.tree.map(lambda each: each / BATCH, gradients)
        changes, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    judge = jax.jit(lambda weights, constants, batch: loss(weights, constants, batch, None))
    judged_by = validate if len(validate) else learn
    judging = batches(judged_by, np.arange(len(judged_by)))
    weights = encoder.initial(seed)
    state = optimizer.init(weights)
    random = np.random.default_rng(seed)
    key = jax.random.key(seed + 1)
    best, best_epoch, best_loss = weights, 0, np.inf
    progress = tqdm(
        range(1, epochs + 1), desc=f"training {encoder.name}", unit="epoch", disable=not show, leave=False
    )
    for epoch in progress:
        made = batches(learn, random.permutation(len(learn)))
        total = 0.0
        for place in random.permutation(len(made)):
            key, now = jax.random.split(key)
            weights, state, value = update(weights, state, constants, made[place], now)
            total += value
        told = sum(float(judge(weights, constants, batch)) for batch in judging) / judged_by.weights.sum()
        progress.set_postfix_str(
            f"loss {float(total) / learn.weights.sum():.3f}, on contexts set aside {told:.3f}"
        )
        if not np.isfinite(told):
            raise FloatingPointError(f"the loss is {told} after epoch {epoch}")
        if fixed or told < best_loss:
            best, best_epoch, best_loss = weights, epoch, told
        elif epoch - best_epoch >= PATIENCE:
            break
    progress.close()
    return Outcome(best, epoch, best_epoch, time.monotonic() - begun)


jax.tree_util.register_dataclass(Batch, ["steps", "lengths", "labels", "weights"], [])


def scores(encoder: Encoder, weights: Weights, steps: list[np.ndarray]) -> np.ndarray:
    """The encoder's scores for each class and context, in floating point."""
    constants = encoder.table.constants()
    rows = jax.jit(encoder.rows)(weights, constants)
    judge = jax.jit(encoder.shape.scores)
    examples = Examples(steps, np.arange(len(steps)), np.ones(len(steps), np.float32))
    found = np.zeros((len(steps), 7), np.float32)
    for batch in batches(examples, np.arange(len(steps))):
        real = batch.weights > 0
        found[batch.labels[real]] = np.asarray(judge(weights, rows, batch.steps, batch.lengths))[real]
    return found
