"""Another build of a program than the one that a model was made from: bound by names, the model predicts for
it what training could learn; before that, nothing."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from train.data import all_code, contexts, symbols
from train.model import link, model_file, runtime_addresses
from train.model.model_file import STEP_ENDS
from train.model.predictor import frame_at
from train.tests import revision
from train.tests.test_real_profile import SECONDS, TARGET, run

BUILDS = {"revision": (revision.CHANGES, ["-O1"]), "optimised": ({}, ["-O2"]), "as_written": ({}, ["-O0"])}


def built(folder: Path, changes: dict[str, str], options: list[str]) -> Path:
    folder.mkdir()
    (folder / "server.cc").write_text(revision.changed(changes))
    run("g++", "-std=c++17", "-g", *options, "-o", folder / "server", folder / "server.cc")
    return folder / "server"


def profiled(program: Path) -> Path:
    name = program.with_name("run")
    run(TARGET / "mayfly", "profile", "--every", "2k", "-o", name, "--", program, SECONDS)
    return name.with_suffix(".parquet")


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """The profile that models are made from."""
    return profiled(built(tmp_path_factory.mktemp("first") / "build", {}, ["-O1"]))


@pytest.fixture(scope="module", params=[("table", 1), ("lstm-frames", 10)], ids=["table", "network"])
def model(request, first) -> Path:
    name, rounds = request.param
    path = first.with_name(f"{name}.mayfly-model")
    if not path.exists():  # made for another parameter's tests
        options = ["--encoder", name, "--json", "--rounds", rounds]
        run(TARGET / "mayfly", "train", first, "-o", path, *options)
    return path


@pytest.fixture(scope="module", params=list(BUILDS))
def other(request, first) -> Path:
    """The profile of another build."""
    folder = first.parent.with_name(request.param)
    return folder / "run.parquet" if folder.exists() else profiled(built(folder, *BUILDS[request.param]))


def measured(model: Path, profile: Path) -> dict:
    return json.loads(run(TARGET / "mayfly", "train", profile, "--measure", model, "--json"))


def bound_to(model: Path, profile: Path) -> tuple[Path, dict]:
    program, bound = profile.with_name("server"), profile.with_name(f"bound-{model.name}")
    return bound, json.loads(run(TARGET / "mayfly", "bind", model, "-o", bound, "--json", "--", program))


def test_a_bound_model_is_as_accurate_as_by_names(model, other):
    before = measured(model, other)
    assert before["measure.all.bytes_known_percent"] == 0, "the heap ignores it"
    bound, said = bound_to(model, other)
    after = measured(bound, other)
    assert after["measure.frames_known_percent"] > 99 and "measure.by_names.bytes_percent" not in after
    # The accuracy depends on the machine's load in either run; that it is equal does not.
    for key in ("bytes_percent", "bytes_off_by_one_percent", "bytes_known_percent"):
        assert after[f"measure.all.{key}"] > before[f"measure.by_names.{key}"] - 3
    assert after["measure.all.bytes_off_by_one_percent"] > 0
    assert 0 < said["bind.contexts"] <= said["bind.all_contexts"]
    # And its accuracy for the build that it was made for does not change.
    own = str(profile_of(model))
    same = [measured(each, own)["measure.all.bytes_percent"] for each in (model, bound)]
    assert same[0] == same[1] > 0


def profile_of(model: Path) -> Path:
    return model.with_name("run.parquet")


def test_the_heap_predicts_as_measured(model, other):
    bound, _ = bound_to(model, other)
    raw = other.with_suffix(".profile")
    answers = run(TARGET / "mayfly", "predict", "--model", bound, raw, "--json").splitlines()
    classes = [json.loads(line)["class"] for line in answers]
    stacks = pq.read_table(other, columns=["stack"])["stack"].to_pylist()
    data = runtime_addresses.load("duckdb", [str(other)])
    labelled = {"@".join(stack) for stack in data.contexts.stacks}
    by_heap = [
        -1 if of_one is None else of_one
        for stack, of_one in zip(stacks, classes, strict=True)
        if stack in labelled
    ]
    assert by_heap == runtime_addresses.predict(model_file.read(bound), data).tolist()
    assert len(set(by_heap)) > 2


def test_bound_functions_have_the_entries_of_training(model, other, monkeypatch):
    monkeypatch.setenv(all_code.COMMAND, str(TARGET / "mayfly"))
    bound = model_file.read(bound_to(model, other)[0])
    names = link.Names.of(bound).entries()
    build_ids = {bytes(module.build_id) for module in bound.modules}
    rows = pq.read_table(symbols.beside(str(other)), columns=["path", "start"]).to_pylist()
    assert {row["path"] for row in rows} >= {str(other.with_name("server"))}
    [file] = [
        file for file in symbols.load("duckdb", [str(other)]) if file.path == str(other.with_name("server"))
    ]
    assert file.build_id in build_ids
    right = []
    for start, name in zip(file.starts.tolist(), file.names, strict=True):
        frame = frame_at(bound, file.build_id, start)
        right.append(
            tuple(bound.steps[bound.frames[frame] : bound.frames[frame + 1]].tolist()) == names(name)
        )
    # A call has the names of its own line, a line those of its beginning.
    assert len(right) > 500 and np.mean(right) > 0.98
    assert all(int(bound.steps[end - 1]) & STEP_ENDS for end in bound.frames[1:])


def test_bind_reports_the_known_share_of_the_models_contexts(first, model, tmp_path):
    """A build without the sessions does not know their contexts, and knows all others."""
    removed = {
        "if (seed % 4 == 0) session(seed);": "",
        "FUNCTION static void session(int seed) { Holder<Kind + 100>::hold(seed); }": "",
    }
    program = built(tmp_path / "without", removed, ["-O1"])
    said = json.loads(run(TARGET / "mayfly", "bind", model, "-o", tmp_path / "m", "--json", "--", program))
    data = contexts.load("duckdb", [str(first)])
    lost = np.array([any("session(" in frame for frame in stack) for stack in data.stacks])
    share = 100 * data.bytes[~lost].sum() / data.bytes.sum()
    assert lost.any() and abs(said["bind.bytes_percent"] - share) < 3
    again = run(TARGET / "mayfly", "bind", tmp_path / "m", "-o", tmp_path / "n", "--json", "--", program)
    assert json.loads(again)["bind.all_functions"] == 0, "it is of this build now"


def test_run_binds_the_model_and_logs_one_line(first, model, other, tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def said(program: Path) -> list[str]:
        command = [TARGET / "mayfly", "run", "--model", model, "--table", "none", "--", program, "1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0
        return [line for line in done.stderr.splitlines() if "build" in line]

    assert said(first.with_name("server")) == [] and not list(tmp_path.iterdir())
    program = other.with_name("server")
    lines = said(program)
    while "by names" not in lines[0]:
        # On a busy machine the bound model is made in the background.
        assert "in the background" in lines[0]
        lines = said(program)
    [line] = lines
    assert line.startswith(f"mayfly: server is of another build than {model}: by names, ")
    assert len(list((tmp_path / "mayfly/bound").glob("*.mayfly-model"))) == 1


def test_bind_refuses_unfit_files_in_one_line(first, model, tmp_path):
    def refusal(model: Path, *files: Path) -> str:
        command = [TARGET / "mayfly", "bind", model, "-o", tmp_path / "out", "--", *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout, (tmp_path / "out").exists()) == (1, "", False)
        [line] = done.stderr.splitlines()
        return line.removeprefix("mayfly: ")

    program = first.with_name("server")
    anonymous = tmp_path / "anonymous"
    run("objcopy", "--remove-section", ".note.gnu.build-id", program, anonymous)
    wanted = "it has no build-id, by which the heap would know it: link it with -Wl,--build-id"
    assert refusal(model, anonymous) == f"{anonymous}: {wanted}"
    assert refusal(model, program, tmp_path / "none").startswith(f"{tmp_path / 'none'}: No such file")
    assert refusal(model, first).startswith(f"{first}: ")
    content = model_file.read(model)
    content.seen = None
    old = tmp_path / "old"
    model_file.write(content, old)
    wanted = "it does not keep the contexts that it was made from, as older models: train it again"
    assert refusal(old, program) == f"model {old}: {wanted}"
    damaged = tmp_path / "damaged"
    damaged.write_bytes(model.read_bytes()[:-9])
    assert refusal(damaged, program) == f"model {damaged}: it is not as long as it says: cut short?"
