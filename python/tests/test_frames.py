"""Tables and models by their parts, with fake classes of the same names where the libraries are not
installed."""

import sys
import types

import numpy
import pytest
from mayfly.regions import regions_of


@pytest.fixture
def module(monkeypatch):
    def make(name, **classes):
        made = types.ModuleType(name)
        for key, value in classes.items():
            setattr(made, key, value)
        monkeypatch.setitem(sys.modules, name, made)

    return make


def sizes(thing):
    return sorted(region.size_bytes for region in regions_of(thing))


def test_an_estimator_gives_its_arrays_and_those_of_its_trees(module):
    class Tree:
        def __init__(self):
            nodes = numpy.zeros(100, dtype=[("left", "i8"), ("threshold", "f8")])
            self.threshold, self.value = nodes["threshold"], numpy.ones((100, 1, 2))

    class BaseEstimator:
        pass

    module("sklearn.base", BaseEstimator=BaseEstimator)
    module("sklearn.tree._tree", Tree=Tree)
    forest, one, other = BaseEstimator(), BaseEstimator(), BaseEstimator()
    one.tree_, other.tree_ = Tree(), Tree()
    forest.estimators_, forest.classes_ = [one, other], numpy.arange(5)
    forest.n_estimators, forest.criterion, forest.random_state = 2, "gini", numpy.random.RandomState(1)
    # 100 nodes of 16 bytes, but for the word in front of the first threshold.
    assert sizes(forest) == [40, 1592, 1592, 1600, 1600]
    forest.estimators_ = numpy.array([[one], [other]], dtype=object)  # gradient boosting
    assert sizes(forest) == [40, 1592, 1592, 1600, 1600]


def test_a_frame_gives_its_columns_and_leaves_objects_out(module):
    class DataFrame:
        def __init__(self, *columns):
            self.columns_, self.shape = columns, (10, len(columns))
            self.index = self.columns = RangeIndex()

        def _get_column_array(self, at):
            return self.columns_[at]

    class RangeIndex:
        pass

    module("pandas", DataFrame=DataFrame, RangeIndex=RangeIndex)
    block = numpy.zeros((2, 10))
    frame = DataFrame(block[0], block[1], numpy.array(["a"] * 10, dtype=object))
    assert sizes(frame) == [80, 80]
