"""Programs that no model has seen."""

import json

import numpy as np
import pytest

from train.data.tokens import RESERVED
from train.errors import TrainError
from train.studies import new_binaries
from train.tests import synthetic


def test_tokens_of_the_same_names_lie_near_each_other():
    groups = [[f"{letter}{number}" for number in range(6)] for letter in "abcdefgh"]
    names = [
        f"{one}::{other}({third})" for words in groups for one in words for other in words for third in words
    ]
    vocabulary, vectors = new_binaries.vectors(names, 100, seed=1)
    assert vectors.shape == (len(vocabulary), new_binaries.DIMENSIONS) and np.isfinite(vectors).all()
    of = dict(zip(vocabulary.tokens, vectors, strict=True))

    def nearness(one: str, other: str) -> float:
        return float(of[one] @ of[other] / (np.linalg.norm(of[one]) * np.linalg.norm(of[other])))

    assert nearness("a0", "a1") > 0.6 > 0.3 > nearness("a0", "b0")
    assert len(vocabulary) == 48 + len(RESERVED)


def test_predicts_a_program_from_the_others(tmp_path, capsys):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"program{number}.parquet")
        synthetic.write(str(paths[-1]), synthetic.contexts(250, seed=number))
    named = [f"{path.stem}={path}" for path in paths]
    assert new_binaries.main([*named, "--rounds", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    for path in paths:
        # They are servers of one kind, with the same names.
        chance, by_names = (found[f"{path.stem}.{kind}.contexts_percent"] for kind in ("chance", "names"))
        assert by_names > chance + 20 and f"{path.stem}.embedding.cost" in found
    with pytest.raises(TrainError, match="name two at least"):
        new_binaries.main(named[:1])
