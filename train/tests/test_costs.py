"""The cost of a confusion: one table in two languages, and models learned by it."""

import re
from pathlib import Path

import numpy as np

from train.data.contexts import Contexts
from train.model import costs, measure, table
from train.model.recipe import Recipe

ROOT = Path(__file__).parents[2]


def test_the_heap_weighs_by_the_same_numbers():
    text = (ROOT / "heap/src/lifetime/cost.rs").read_text()
    for name in ("OUTLIVES", "DIES_BEFORE"):
        [found] = re.findall(rf"const {name}: \[u8; CLASSES\] = \[(.*?)\];", text)
        assert tuple(int(number) for number in found.split(",")) == getattr(costs, name)


def test_predicts_the_cheapest_class():
    shares = np.zeros(7)
    shares[0], shares[1] = 60, 40
    assert shares.argmax() == 0 and costs.cheapest(shares) == 1, "to be outlived by many costs more"
    shares[0], shares[1], shares[6] = 80, 0, 20
    assert costs.cheapest(shares) > 0, "a fifth that stays would hold the pages of all"
    shares[6] = 0.1
    assert costs.cheapest(shares) == 0


def contexts_of(stacks: list[str], labels: list[int], sizes: list[float]) -> Contexts:
    numbers = np.array(sizes, np.float64)
    return Contexts(
        [stack.split("@") for stack in stacks],
        np.array(labels, np.int32),
        numbers,
        numbers,
        numbers,
        np.zeros(len(labels), np.int32),
    )


def test_a_table_by_costs_decides_between_neighbouring_classes():
    ends = ("a", "b", "c", "d")
    data = contexts_of([f"make@{end}@x@y@z@main" for end in ends], [0, 1, 0, 1], [1, 1, 1, 1])
    new = [["make", "new", "main"]]
    by_costs, plain = (table.make(data, Recipe(table.NAME, by_costs=each)) for each in (True, False))
    assert table.predict(by_costs, new).tolist() == [1], "either of the two classes costs little"
    assert table.predict(plain, new).tolist() == [-1]
    for model in (by_costs, plain):
        assert table.predict(model, data.stacks).tolist() == [0, 1, 0, 1], (
            "known contexts get their own class"
        )


def test_accuracy_reports_bytes_that_outlive_their_pages():
    data = contexts_of(["a", "b", "c", "d"], [0, 2, 6, 3], [50, 20, 20, 10])
    found = measure.accuracy(data, np.array([1, 0, 6, -1]))
    wanted = (20 / 90, (50 * 1 + 20 * 12) / 90)
    np.testing.assert_allclose((found.outlived, found.cost), wanted)
