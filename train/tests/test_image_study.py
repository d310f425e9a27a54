"""The studies of the image server in bench/lifetime: lifetimes of a profile by class, its other builds, the
cost of sampling."""

import pytest

from bench.lifetime import build, image_study, sampling
from bench.outcome import BenchError
from train.data.dataset import CLASS_NAMES
from train.data.profiles import FREED, LEFT
from train.errors import TrainError
from train.studies import lifetime_classes
from train.tests import synthetic

NONE = dict.fromkeys((*FREED, *LEFT), 0) | {"live": 0}


def test_samples_stand_for_all_allocations_of_their_context(tmp_path):
    rows = [
        NONE | {"stack": "a@main", "allocations": 600.0, FREED[0]: 2, FREED[1]: 1},
        # One of two objects was left after 1 s while the program ran on, the other never freed.
        NONE | {"stack": "b@main", "allocations": 400.0, "live": 2, LEFT[2]: 1},
        NONE | {"stack": "unwatched@main", "allocations": 9000.0},
    ]
    synthetic.write(tmp_path / "p.parquet", rows)
    found = lifetime_classes.shares([str(tmp_path / "p.parquet")])
    wanted = {"10ms": 40, "100ms": 20, "1s": 20, "inf": 20}
    assert {name: round(share, 6) for name, share in found.items()} == dict.fromkeys(CLASS_NAMES, 0) | wanted


def test_a_profile_without_lifetimes_is_refused(tmp_path):
    synthetic.write(tmp_path / "p.parquet", [NONE | {"stack": "a@main", "allocations": 1.0}])
    with pytest.raises(TrainError, match="no lifetime is known"):
        lifetime_classes.shares([str(tmp_path / "p.parquet")])


def test_a_revision_changes_the_source_that_there_is(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(build, "library_flags", lambda name: [])
    monkeypatch.setattr(build, "ask", lambda command, what: ran.append(command))
    program = build.image_server_of(tmp_path / "revision", "g++", ["-O0"], image_study.REVISION)
    text = (tmp_path / "revision" / "image_server.cc").read_text()
    assert all(after in text for after in image_study.REVISION.values())
    assert ran[0][0] == "g++" and ran[0][-2] == program and ran[0].index("-O0") > ran[0].index("-O2")
    with pytest.raises(BenchError, match="has no 'int gone;'"):
        build.image_server_of(tmp_path / "other", "g++", [], {"int gone;": ""})


def test_requests_of_a_sampled_server_are_beside_those_of_an_unsampled_one():
    flat = sampling.flat_of({"unsampled": [(100, 200), (100, 400)], "sampled": [(103, 210), (105, 400)]})
    assert flat["sampling.sampled.load_ms"] == 305 and flat["sampling.sampled.ratio"] == 1.04
    assert (flat["sampling.sampled.load_ratio_min"], flat["sampling.sampled.load_ratio_max"]) == (1, 1.05)
