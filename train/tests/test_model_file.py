"""The model file: reading returns what was written, damaged files are refused, and it predicts as training
measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from train.data.symbols import Ranges
from train.data.tokens import Vocabulary
from train.errors import TrainError
from train.model import export, link, model_file
from train.model.encoders import Encoder
from train.model.model_file import STEP_ENDS, Model, Module
from train.model.predictor import Predictor, frame_at
from train.model.training import scores
from train.tests import synthetic

STACKS = [stack for stack, _ in (synthetic.stack_and_class(synthetic.random.Random(n)) for n in range(60))]
FRAMES = sorted({frame for stack in STACKS for frame in stack})
UNSEEN = "codec::PngDecoder::rewind(char const*, Tile const&)"


def files(names: list[str]) -> list[Ranges]:
    """Two files, with gaps between some functions."""
    starts = np.cumsum([16 + 8 * (len(name) % 3) for name in names]) + 0x400
    halves = np.array_split(np.arange(len(names)), 2)
    return [
        Ranges(bytes([7 + part] * 20), starts[half], starts[half] + 16, [names[place] for place in half])
        for part, half in enumerate(halves)
    ]


def untrained(name: str, hidden: int = 16):
    """An encoder with weights as they are before training, large enough for its scores to differ."""
    encoder = Encoder(name, hidden, Vocabulary.of(FRAMES, 100), FRAMES[::2])
    # Not the recurrent ones: a recurrence that amplifies would magnify any rounding.
    weights = {
        key: np.asarray(value) * (1 if key == "recurrent" else 3) for key, value in encoder.initial(3).items()
    }
    if "frames" in weights:
        # Frames that training did not see have room here, and must not have a vector of their own.
        weights["frames"] = np.random.default_rng(1).normal(0, 0.3, weights["frames"].shape)
    return encoder, {key: np.asarray(value, np.float32) for key, value in weights.items()}


@pytest.mark.parametrize("name", ["lstm-tokens", "lstm-frames"])
@pytest.mark.parametrize("hidden", [16, 64])
def test_the_file_predicts_like_the_encoder(name, hidden, tmp_path):
    encoder, weights = untrained(name, hidden)
    model, frames = export.export(encoder, weights, files([*FRAMES, UNSEEN]), 32)
    model_file.write(model, tmp_path / "m")
    predictor = Predictor(model_file.read(tmp_path / "m"))
    stacks = [*STACKS, [UNSEEN, *STACKS[0]]]
    exact = scores(encoder, weights, [encoder.steps.of(stack) for stack in stacks])
    rounded = predictor.scores([[frames[frame] for frame in stack] for stack in stacks])
    # 8 bits a weight: some hundredths of the scores' spread.
    wrong = np.abs(exact - rounded) / exact.std()
    assert wrong.mean() < 0.06 and wrong.max() < 0.4
    assert (exact.argmax(axis=1) == rounded.argmax(axis=1)).mean() > 0.9


def test_addresses_have_the_frames_of_their_functions():
    encoder, weights = untrained("lstm-frames")
    names = [*FRAMES, UNSEEN]
    both = files(names)
    model, frames = export.export(encoder, weights, both, 32)
    for file in both:
        assert frame_at(model, file.build_id, int(file.starts[0]) - 1) == link.UNKNOWN_FRAME
        for start, end, name in zip(file.starts, file.ends, file.names, strict=True):
            for address in (start, start + 9, end - 1):
                assert frame_at(model, file.build_id, int(address)) == frames[name] != link.UNKNOWN_FRAME
            # Between functions there is nothing, unless the next one begins at once.
            if end not in file.starts:
                assert frame_at(model, file.build_id, int(end)) == link.UNKNOWN_FRAME
    assert frame_at(model, b"another build", int(both[0].starts[0])) == link.UNKNOWN_FRAME
    for module in model.modules:
        assert (np.diff(model.starts[module.first : module.first + module.ranges].astype(np.int64)) > 0).all()


def test_a_frame_seen_in_training_is_one_row_and_another_the_sum_of_its_tokens():
    encoder, weights = untrained("lstm-frames")
    model, frames = export.export(encoder, weights, files([*FRAMES, UNSEEN]), 32)
    steps = encoder.steps
    entries = lambda name: model.steps[model.frames[frames[name]] : model.frames[frames[name] + 1]]  # noqa: E731
    assert [len(entries(name)) for name in FRAMES[::2]] == [1] * len(FRAMES[::2])
    tokens = steps.tokens_of(UNSEEN)
    assert [int(entry) & ~STEP_ENDS for entry in entries(UNSEEN)] == tokens and len(tokens) > 3
    assert [int(entry) >= STEP_ENDS for entry in entries(UNSEEN)] == [False] * (len(tokens) - 1) + [True]


def test_another_build_gets_the_same_frames_by_name(tmp_path):
    encoder, weights = untrained("lstm-frames")
    model, frames = export.export(encoder, weights, files(FRAMES), 32)
    model_file.write(model, tmp_path / "m")
    before = Predictor(model).scores([[frames[frame] for frame in stack] for stack in STACKS])
    other = model_file.read(tmp_path / "m")
    relinked = link.link(
        other,
        [Ranges(b"x" * 20, np.arange(len(FRAMES)) * 64, np.arange(len(FRAMES)) * 64 + 64, FRAMES[::-1])],
    )
    after = Predictor(other).scores([[relinked[frame] for frame in stack] for stack in STACKS])
    np.testing.assert_array_equal(before, after)


def floats(shape):
    return hnp.arrays(np.float32, shape, elements=st.floats(-9, 9, width=32))


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([16, 32, 64]), st.integers(1, 9), st.integers(0, 30))
def test_any_model_is_read_as_it_was_written(data, hidden, rows, ranges):
    draw = data.draw
    bytes_of = lambda shape: draw(hnp.arrays(np.int8, shape))  # noqa: E731
    model = Model(
        encoder=1,
        hidden=hidden,
        most_frames=draw(st.integers(1, 64)),
        outermost_first=draw(st.booleans()),
        metadata=draw(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3)),
        modules=[Module(draw(st.binary(min_size=20, max_size=20)), 0, ranges)],
        limits=np.arange(1, 8, dtype=np.uint64),
        starts=np.arange(ranges, dtype=np.uint32),
        range_frames=np.zeros(ranges, np.uint32),
        frames=np.array([0, 1], np.uint32),
        steps=np.array([STEP_ENDS], np.uint16),
        rows=bytes_of((rows, 4 * hidden)),
        row_scales=draw(floats(rows)),
        bias=draw(floats(4 * hidden)),
        recurrent=bytes_of((4 * hidden, hidden)),
        recurrent_scales=draw(floats(4 * hidden)),
        dense=draw(floats((7, hidden))),
        dense_bias=draw(floats(7)),
        names=np.zeros(3, np.uint8),
    )
    content = model_file.to_bytes(model)
    assert len(content) % 64 == 0
    again = model_file.from_bytes(content, "it")
    for name, value in vars(model).items():
        np.testing.assert_array_equal(getattr(again, name), value, name)
    assert model_file.to_bytes(again) == content


def test_damaged_files_are_refused(tmp_path):
    model, _ = export.export(*untrained("lstm-frames"), files(FRAMES), 32)
    content = model_file.to_bytes(model)
    for damage, words in [
        (b"", "not a model"),
        (content[:40], "not a model"),
        (content[:-64], "truncated"),
        (content + bytes(64), "not [0-9]+: the file is truncated"),
        (content[:8] + b"\2" + content[9:], "version 2"),
        (content[:3000] + bytes([content[3000] ^ 1]) + content[3001:], "checksum"),
        (content[:33] + b"\1" + content[34:], "checksum"),
    ]:
        with pytest.raises(TrainError, match=words):
            model_file.from_bytes(damage, "m")


def test_weights_that_are_not_finite_are_never_written():
    encoder, weights = untrained("lstm-frames")
    weights["dense_bias"][2] = np.nan
    model, _ = export.export(encoder, weights, files(FRAMES), 32)
    with pytest.raises(ValueError, match="dense_bias is not finite"):
        model_file.to_bytes(model)
