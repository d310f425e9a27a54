"""Predicts with a model file as the heap does, step by step in the same arithmetic (32-bit floats, 8-bit
weights and states), so the reported accuracy is that of the file, not of the weights before rounding."""

from collections.abc import Iterable

import numpy as np

from train.model.model_file import STEP_ENDS, Model

_F32 = np.float32


def frame_at(model: Model, build_id: bytes, address: int) -> int:
    """The frame of the code at an address of a file: for a return address, the one before it."""
    module = next((module for module in model.modules if bytes(module.build_id) == build_id), None)
    if module is None or not module.ranges:
        return 0
    starts = model.starts[module.first : module.first + module.ranges]
    place = int(np.searchsorted(starts, address, side="right")) - 1
    return int(model.range_frames[module.first + place]) if place >= 0 else 0


class Predictor:
    """A model ready to predict many contexts at once."""

    def __init__(self, model: Model):
        self.model = model
        self._inputs = [self._steps_of(frame) for frame in range(len(model.frames) - 1)]
        self._recurrent = model.recurrent.astype(np.int32)
        self._scales = model.recurrent_scales / _F32(127)

    def _steps_of(self, frame: int) -> np.ndarray:
        """The inputs of each step of a frame."""
        model = self.model
        steps, total = [], model.bias.copy()
        for entry in model.steps[model.frames[frame] : model.frames[frame + 1]]:
            row = int(entry) & ~STEP_ENDS
            total += model.rows[row].astype(_F32) * model.row_scales[row]
            if entry & STEP_ENDS:
                steps.append(total)
                total = model.bias.copy()
        return np.array(steps, _F32).reshape(len(steps), 4 * model.hidden)

    def scores(self, contexts: Iterable[list[int]]) -> np.ndarray:
        """The scores of each class, (N, classes) in float32, for contexts given as frames, innermost
        first."""
        model = self.model
        sequences = []
        for frames in contexts:
            frames = frames[: model.most_frames]
            chosen = reversed(frames) if model.outermost_first else frames
            empty = np.zeros((0, 4 * model.hidden), _F32)
            sequences.append(np.concatenate([empty, *(self._inputs[frame] for frame in chosen)]))
        hidden = np.zeros((len(sequences), model.hidden), _F32)
        cell = hidden.copy()
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        for step in range(int(lengths.max(initial=0))):
            live = np.flatnonzero(lengths > step)
            inputs = np.stack([sequences[place][step] for place in live])
            quantised = np.rint(hidden[live] * _F32(127)).astype(np.int32)
            gates = inputs + (quantised @ self._recurrent.T).astype(_F32) * self._scales
            opened, kept, new, shown = np.split(gates, 4, axis=1)
            cell[live] = _sigmoid(kept) * cell[live] + _sigmoid(opened) * _tanh(new)
            hidden[live] = _sigmoid(shown) * _tanh(cell[live])
        scores = np.zeros((len(sequences), len(model.limits)), _F32)
        for unit in range(model.hidden):
            scores += model.dense[:, unit] * hidden[:, unit, None]
        return scores + model.dense_bias


# Activations as the heap computes them, operation by operation (lifetime/model/src/activation.rs).
_LARGEST = _F32(10)
_TWICE_LOG2_E = _F32(2 * np.log2(np.e))
_LN_2 = _F32(np.log(2))
_ROUNDING = _F32(12582912)
_EXPONENTIAL = [_F32(1 / factor) for factor in (5040, 720, 120, 24, 6, 2, 1, 1)]


def _tanh(x: np.ndarray) -> np.ndarray:
    power = np.clip(x, -_LARGEST, _LARGEST) * _TWICE_LOG2_E
    whole = (power + _ROUNDING) - _ROUNDING
    y = (power - whole) * _LN_2
    p = np.full_like(y, _EXPONENTIAL[0])
    for factor in _EXPONENTIAL[1:]:
        p = p * y + factor
    e = np.ldexp(p, whole.astype(np.int32))
    return (e - _F32(1)) / (e + _F32(1))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return _tanh(x * _F32(0.5)) * _F32(0.5) + _F32(0.5)
