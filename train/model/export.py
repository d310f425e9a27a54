"""From trained weights to a model file: products that depend on a function alone are computed (LLAMA §10),
weights are rounded to 8 bits, and every function of every build in the profiles gets its steps, by
address."""

from collections.abc import Iterable

import numpy as np

from train.data.symbols import Ranges
from train.model import model_file
from train.model.encoders import EMBEDDING, Encoder, Weights
from train.model.link import Names, link
from train.model.model_file import LIMITS_MS, Model
from train.model.stacks import FrameSteps


def export(
    encoder: Encoder, weights: Weights, files: Iterable[Ranges], most_frames: int
) -> tuple[Model, dict[str, int]]:
    """The model file of a trained encoder, for the functions of these files; and the frame of each name."""
    weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    steps = encoder.steps
    names = Names(encoder.name, steps.vocabulary.tokens, [])
    vectors = weights["tokens"][: len(steps.vocabulary)]
    if isinstance(steps, FrameSteps):
        names.frames = list(steps.frames)[: steps.seen]
        # A frame that was seen: its tokens' vectors and its own, added up here once and for all.
        tokens = [vectors[steps.tokens_of(frame)].sum(axis=0) for frame in names.frames]
        vectors = np.concatenate(
            [vectors, np.reshape(tokens, (-1, EMBEDDING)) + weights["frames"][: steps.seen]]
        )
    rows, row_scales = quantised(vectors @ weights["inputs"])
    recurrent, recurrent_scales = quantised(weights["recurrent"].T)
    model = Model(
        encoder=model_file.RECURRENT,
        hidden=encoder.hidden,
        most_frames=most_frames,
        outermost_first=False,
        metadata={},
        modules=[],
        limits=LIMITS_MS,
        rows=rows,
        row_scales=row_scales,
        bias=weights["bias"],
        recurrent=recurrent,
        recurrent_scales=recurrent_scales,
        dense=np.ascontiguousarray(weights["dense"].T),
        dense_bias=weights["dense_bias"],
        names=names.packed(),
    )
    return model, link(model, files)


def quantised(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of weights, (rows, columns), as int8, and the scale of each, (rows,) in float32."""
    largest = np.abs(weights).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.clip(np.rint(weights / scales[:, None]), -127, 127).astype(np.int8), scales
