"""Training learns what contexts have in common, the same way each time."""

import json

import numpy as np
import pytest

from train.__main__ import main
from train.data import contexts
from train.data.contexts import Contexts
from train.data.tokens import Vocabulary
from train.model import export, measure, model_file, networks, training
from train.model.encoders import ENCODERS, Encoder, padded
from train.model.predictor import Predictor
from train.model.recipe import Recipe
from train.tests import synthetic


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "p.parquet"
    synthetic.write(path, synthetic.contexts(1200))
    return str(path)


@pytest.fixture(scope="module")
def data(profile):
    return contexts.load("duckdb", [profile])


def test_a_model_is_right_about_contexts_it_has_not_seen(profile, data, tmp_path, capsys):
    model, plot = tmp_path / "m", tmp_path / "confusion.svg"
    assert main([profile, "-o", str(model), "--plot", str(plot), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    held_out = data.split((0, 1)).held_out
    assert found["train.contexts"] == len(data) and found["train.held_out.contexts"] == len(held_out) > 100
    # Always the most common class: 20%. Only outer frames decide a fifth of the classes.
    assert found["train.held_out.unweighted_percent"] > 75
    assert found["train.held_out.weighted_percent"] > 75
    assert found["train.held_out.weighted_off_by_one_percent"] >= found["train.held_out.weighted_percent"]
    # Rounding to 8 bits changes little.
    before = found["train.held_out_before_rounding.unweighted_percent"]
    assert abs(found["train.held_out.unweighted_percent"] - before) < 5
    assert found["train.model_bytes"] == model.stat().st_size
    assert found["train.all.unweighted_percent"] > found["train.held_out.unweighted_percent"] - 5
    assert model_file.read(model).metadata["held_out"]["contexts"] == len(held_out)
    assert plot.read_text().startswith("<?xml")
    assert "train.profiles_agree_percent" not in found, "one profile has none to agree with"

    assert main([profile, "--measure", str(model), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for key in ("weighted_percent", "unweighted_percent", "contexts"):
        assert again[f"measure.all.{key}"] == found[f"train.all.{key}"]


def test_a_model_is_right_about_another_build(profile, tmp_path, capsys):
    """Other addresses, another build-id, other arguments: contexts that no table could find (Table 2)."""
    model = tmp_path / "m"
    assert main([profile, profile, "-o", str(model), "--rounds", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train.profiles_agree_percent"] == 100
    other = tmp_path / "other.parquet"
    rows = synthetic.contexts(600, seed=9)
    for row in rows:
        row["stack"] = row["stack"].replace("unsigned long", "unsigned int").replace("char const*", "String")
    synthetic.write(other, rows, build=7)
    assert main([str(other), "--measure", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measure.by_names.unweighted_percent"] > 70
    # The heap ignores it before it is bound to this build.
    assert found["measure.all.bytes_percent"] == found["measure.all.bytes_known_percent"] == 0
    assert 0 < found["measure.frames_known_percent"] < 67


@pytest.mark.parametrize("encoder", ["lstm-tokens", "lstm-frames"])
def test_the_same_profile_and_seed_give_the_same_file(encoder, tmp_path):
    profile = str(tmp_path / "p.parquet")
    synthetic.write(profile, synthetic.contexts(80))

    def made(name: str, seed: int) -> bytes:
        chosen = ["--encoder", encoder, "--hidden", "16", "--rounds", "2", "--seed", str(seed)]
        assert main([profile, "-o", str(tmp_path / name), *chosen]) == 0
        return (tmp_path / name).read_bytes()

    first = made("first", 1)
    assert made("again", 1) == first
    assert made("other", 2) != first


@pytest.mark.parametrize("name", ENCODERS)
def test_scores_do_not_depend_on_the_rest_of_the_batch(name):
    stacks = [stack for stack, _ in (synthetic.stack_and_class(synthetic.random.Random(n)) for n in range(9))]
    frames = sorted({frame for stack in stacks for frame in stack})
    encoder = Encoder(name, 16, Vocabulary.of(frames, 50), frames)
    weights = encoder.initial(1)
    steps = [encoder.steps.of(stack) for stack in stacks]
    constants = encoder.constants()
    alone = [
        np.asarray(encoder.network.scores(weights, constants, *padded([sequence], len(sequence))))[0]
        for sequence in steps
    ]
    np.testing.assert_allclose(training.scores(encoder, weights, steps), alone, rtol=1e-4, atol=1e-5)


def test_batches_hold_every_context_once():
    lengths = [1, 2, 7, 8, 9, 16, 17, 300] * 20
    examples = training.Examples(
        [np.full(length, place, np.int32) for place, length in enumerate(lengths)],
        np.arange(len(lengths)) % 7,
        np.arange(1.0, 1 + len(lengths)),
    )
    order = np.random.default_rng(1).permutation(len(lengths))
    found = []
    for batch in training.batches(examples, order):
        assert batch.steps.shape == (training.BATCH, batch.steps.shape[1])
        for steps, length, label, weight in zip(
            batch.steps, batch.lengths, batch.labels, batch.weights, strict=True
        ):
            if weight:
                place = int(weight) - 1
                found.append(place)
                assert (length, label) == (lengths[place], place % 7)
                assert (steps[:length] == place).all() and not steps[length:].any()
    assert sorted(found) == list(range(len(lengths)))


def test_a_context_counts_by_the_root_of_its_allocations():
    found = training.loss_weights(np.array([1, 100, 10_000, 1e15, 0]))
    assert abs(found.mean() - 1) < 1e-6
    assert abs(found[2] / found[1] - 10) < 1e-4 and found[0] == found[4]
    assert found[3] < 1001 * np.median(found)


def contexts_of(labels: list[int], allocations: list[int], sizes: list[int]) -> Contexts:
    arrays = (np.array(values) for values in (labels, allocations, sizes, sizes, [0] * len(labels)))
    return Contexts([["f"]] * len(labels), *arrays)


def test_accuracies():
    data = contexts_of([0, 1, 2, 6], [70, 20, 9, 1], [10, 20, 30, 40])
    found = measure.accuracy(data, np.array([0, 2, 2, 0]))
    assert found.as_dict() == {
        "contexts": 4,
        "bytes_percent": 40.0,
        "bytes_off_by_one_percent": 60.0,
        "bytes_known_percent": 100.0,
        "weighted_percent": 79.0,
        "unweighted_percent": 50.0,
        "weighted_off_by_one_percent": 99.0,
        "unweighted_off_by_one_percent": 75.0,
        # A fifth of the bytes dies one class early (1), two fifths outlive the prediction by six (44).
        "bytes_outlived_percent": 40.0,
        "cost": 17.8,
    }
    assert found.confusion[1, 2] == 0.2 and abs(found.confusion.sum() - 1) < 1e-9
    assert measure.accuracy(contexts_of([], [], []), np.zeros(0)) is None
    # An unknown context is neither right nor nearly right.
    unknown = measure.accuracy(data, np.array([-1, -1, 2, 6]))
    assert (unknown.bytes, unknown.bytes_near, unknown.bytes_known, unknown.unweighted) == (
        0.7,
        0.7,
        0.7,
        0.5,
    )


def test_comparing_encoders(data, profile, capsys, monkeypatch):
    monkeypatch.setattr("train.model.encoders.ENCODERS", ["lstm-frames"])
    assert main([profile, "--compare", "--json", "--rounds", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    common = found["compare.most_common_class.unweighted_percent"]
    assert found["compare.lstm-frames-64.unweighted_percent"] > 60 > 40 > common
    assert found["compare.lstm-frames-16.contexts"] == len(data.split((0, 1)).held_out)


def test_parts_are_disjoint_and_hold_out_each_context_once(data):
    held_out = set()
    for fold in contexts.EACH_ONCE:
        split = data.split(fold)
        parts = [set(map(tuple, part.stacks)) for part in (split.learn, split.stop_by, split.held_out)]
        assert sum(map(len, parts)) == len(data) == len(set.union(*parts))
        assert not held_out & parts[2]
        held_out |= parts[2]
    assert len(held_out) == len(data)


def test_few_contexts_are_held_out_in_turn(tmp_path, capsys):
    path = tmp_path / "p.parquet"
    synthetic.write(path, synthetic.contexts(120))
    options = ["--encoder", "lstm-frames", "--rounds", "1", "--hidden", "16"]
    assert main([str(path), "-o", str(tmp_path / "m"), "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["train.held_out.contexts"] == found["train.contexts"] == found["train.all.contexts"]


def test_frames_beyond_the_limit_do_not_matter(data):
    encoder = networks.new_encoder(data, Recipe("lstm-frames", hidden=16))
    model, _ = export.export(encoder, encoder.initial(1), [], 3)
    predictor = Predictor(model)
    np.testing.assert_array_equal(predictor.scores([[0, 0, 0]]), predictor.scores([[0] * 9]))
    assert (predictor.scores([[0, 0]]) != predictor.scores([[0, 0, 0]])).any()
