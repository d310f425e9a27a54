"""A profile of a real program, from `mayfly profile` to `mayfly predict`: the heap's code and Python's
predict the same for each context, bit by bit."""

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from train.data import contexts, symbols
from train.model import model_file, table
from train.model.predictor import Predictor, frame_at

HERE = Path(__file__).parent
TARGET = Path(os.environ.get("MAYFLY_TEST_TARGET", HERE.parents[1] / "target" / "release"))
SECONDS = 6


def run(*command, **more) -> str:
    environment = os.environ | {"MAYFLY_TRAIN": str(HERE.parent)}
    done = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, timeout=900, **more
    )
    assert done.returncode == 0, f"{command[:2]}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """The name, without suffix, of the files that `mayfly profile` writes."""
    folder = tmp_path_factory.mktemp("server")
    run("g++", "-std=c++17", "-O1", "-g", "-o", folder / "server", HERE / "server.cc")
    name = folder / "run"
    run(TARGET / "mayfly", "profile", "--every", "2k", "-o", name, "--", folder / "server", SECONDS)
    return name


@pytest.fixture(scope="module", params=[("table", 1), ("lstm-frames", 20), ("lstm-tokens", 1)])
def trained(request, profile):
    """The encoder's name, its model file, and training's JSON output."""
    name, rounds = request.param
    model = profile.with_name(f"{name}.mayfly-model")
    options = ["--encoder", name, "--json", "--rounds", rounds]
    said = run(TARGET / "mayfly", "train", profile.with_suffix(".parquet"), "-o", model, *options)
    return name, model, json.loads(said)


def test_the_tables_of_a_profile_are_compressed_by_zstandard(profile):
    for path in (profile.with_suffix(".parquet"), profile.with_suffix(".symbols.parquet")):
        for group in range((written := pq.ParquetFile(path).metadata).num_row_groups):
            columns = [written.row_group(group).column(n) for n in range(written.num_columns)]
            assert {column.compression for column in columns} == {"ZSTD"}, path.name


def test_learns_lifetimes_that_only_callers_decide(trained, profile):
    name, _, said = trained
    # On a busy machine labels are noise in part, so no figure is required: only more than any one class would
    # get. Off by one, since lifetimes vary.
    labels = contexts.load("duckdb", [str(profile.with_suffix(".parquet"))]).labels
    one_class = max(100 * np.mean(np.abs(labels - label) <= 1) for label in range(labels.max() + 1))
    learned, unseen = (said[f"train.{part}.unweighted_off_by_one_percent"] for part in ("all", "held_out"))
    if name == "table":
        # It knows the contexts that it learned from, and leaves others to the heap. With some compilers a few
        # of these look like one that it knows.
        assert learned > 99 and unseen < 2
    elif name == "lstm-frames":
        assert min(learned, unseen) > one_class
    # The paper's encoder needs more rounds than a test has.


def test_learns_from_repeated_profiles_of_a_running_program(profile, tmp_path):
    """`mayfly profile --again` writes a data set, `mayfly train` reads it whole."""
    library = TARGET / "libmayfly_heap.so"
    environment = os.environ | {"MAYFLY_HEAP_LIB": str(library)}
    server = [TARGET / "mayfly", "run", "--", profile.with_name("server"), "600"]
    running = subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL)
    maps = Path(f"/proc/{running.pid}/maps")
    while library.name not in maps.read_text():  # until then it is `mayfly run`, which does not use the heap
        assert running.poll() is None
        time.sleep(0.01)
    data = tmp_path / "profiles"
    asked = ["--pid", str(running.pid), "--seconds", "2", "--every", "2k", "--again", "2s", "-o", data]
    looking = subprocess.Popen([TARGET / "mayfly", "profile", *asked], stderr=subprocess.PIPE, text=True)
    try:
        # Each finished profile is a line.
        for _ in range(2):
            line = looking.stderr.readline()
            while "contexts" not in line:
                assert line, "the profiler ended"
                line = looking.stderr.readline()
        looking.terminate()
        assert looking.wait(60) == 0
    finally:
        for process in (looking, running):
            process.kill()
            process.wait()
    assert len(list(data.glob("program=server/build=*/*.symbols.parquet"))) >= 2
    model = tmp_path / "server.mayfly-model"
    said = json.loads(run(TARGET / "mayfly", "train", data, "-o", model, "--json"))
    assert said["train.contexts"] > 5 and said["train.other_run.contexts"] > 5, (
        "the last profile was held out"
    )
    assert said["train.ranges"] > 500, "all code is named, though profiles hold only code on stacks"


@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
def test_a_program_that_is_aligned_to_huge_pages_is_one_file(kind, tmp_path):
    """Between its segments are holes, the C library reports one segment at a time, the build-id is in the
    first."""
    program, name = tmp_path / "server", tmp_path / "run"
    aligned = "-Wl,-z,max-page-size=0x200000,-z,separate-code"
    run("g++", "-std=c++17", "-O1", kind, aligned, "-o", program, HERE / "server.cc")
    run(TARGET / "mayfly", "profile", "--every", "2k", "-o", name, "--", program, 1)
    table = f"{name}.parquet"
    rows = pq.read_table(symbols.beside(table), columns=["module", "path", "build_id"]).to_pylist()
    own = {(row["module"], row["build_id"]) for row in rows if row["path"] == str(program)}
    assert len(own) == 1 and all(build_id for _, build_id in own)
    stacks = pq.read_table(table, columns=["stack"])["stack"].to_pylist()
    assert any("Service<1>::" in stack for stack in stacks)


def test_every_frame_of_every_context_is_known(profile):
    """The name of an address in the tables is that of the context's frame."""
    parquet = str(profile.with_suffix(".parquet"))
    named = {}
    for file in symbols.load("duckdb", [parquet]):
        named[file.build_id] = file
    modules = pq.read_table(symbols.beside(parquet), columns=["module", "build_id"]).to_pylist()
    build_ids = {row["module"]: bytes.fromhex(row["build_id"]) for row in modules}
    table = pq.read_table(parquet, columns=["stack", "frames"]).to_pylist()
    checked = 0
    for row in table:
        for address, name in zip(np.frombuffer(row["frames"], "<u8"), row["stack"].split("@"), strict=True):
            build_id = build_ids.get(int(address) >> 48)
            if not build_id:
                continue
            file = named[build_id]
            at = (int(address) & (1 << 48) - 1) - 1
            place = int(np.searchsorted(file.starts, at, side="right")) - 1
            assert file.starts[place] <= at < file.ends[place] and file.names[place] == name
            checked += 1
    assert checked > 1000


def test_the_heap_predicts_like_python(profile, trained):
    name, path, said = trained
    answers = [
        json.loads(line)
        for line in run(
            TARGET / "mayfly", "predict", "--model", path, profile.with_suffix(".profile"), "--json"
        ).splitlines()
    ]
    parquet = str(profile.with_suffix(".parquet"))
    if name == "table":
        rows = pq.read_table(parquet, columns=["stack"])["stack"].to_pylist()
        by_name = table.predict(model_file.read(path), [row.split("@") for row in rows])
        classes = [-1 if answer["class"] is None else answer["class"] for answer in answers]
        assert classes == by_name.tolist() and len(set(classes)) > 2
        return
    predictor = Predictor(model_file.read(path))
    modules = pq.read_table(symbols.beside(parquet), columns=["module", "build_id"]).to_pylist()
    build_ids = {row["module"]: bytes.fromhex(row["build_id"]) for row in modules}
    rows = pq.read_table(parquet, columns=["stack", "frames"]).to_pylist()
    stacks = [
        [
            frame_at(predictor.model, build_ids.get(address >> 48, b""), (address & (1 << 48) - 1) - 1)
            for address in np.frombuffer(row["frames"], "<u8").tolist()
        ]
        for row in rows
    ]
    scores = predictor.scores(stacks)
    assert len(answers) == len(rows) > 100
    np.testing.assert_array_equal(np.array([answer["scores"] for answer in answers], np.float32), scores)
    assert [answer["class"] for answer in answers] == scores.argmax(axis=1).tolist()
    assert len(np.unique(scores.argmax(axis=1))) > 2 or name != "lstm-frames"
    # And the accuracy that training reported on all contexts is that of these predictions.
    data = contexts.load("duckdb", [parquet])
    of_stack = {row["stack"]: answer["class"] for row, answer in zip(rows, answers, strict=True)}
    right = [
        of_stack["@".join(stack)] == label for stack, label in zip(data.stacks, data.labels, strict=True)
    ]
    assert abs(100 * np.mean(right) - said["train.all.unweighted_percent"]) < 0.01


@pytest.mark.parametrize("encoder", ["table", "lstm-frames"])
def test_code_generated_at_run_time_is_the_same_in_another_run(encoder, tmp_path):
    """Its address differs, and neither the profile nor the heap depends on it."""
    program, model = tmp_path / "made", tmp_path / "made.mayfly-model"
    run("cc", "-O1", "-g", "-o", program, HERE / "made_code.c")
    runs = [tmp_path / f"run{number}" for number in range(1, 3)]
    for number, name in enumerate(runs, start=1):
        run(TARGET / "mayfly", "profile", "--every", "2k", "-o", name, "--", program, number)
    tables = [name.with_suffix(".parquet") for name in runs]
    stacks = [set(pq.read_table(table, columns=["stack"])["stack"].to_pylist()) for table in tables]
    stacks = [{stack for stack in of_run if "[anonymous]" in stack} for of_run in stacks]
    assert stacks[0] == stacks[1] and {stack.split("@")[0] for stack in stacks[0]} >= {"brief", "kept"}
    options = ["--encoder", encoder, "--rounds", 40, "--json"]
    said = json.loads(run(TARGET / "mayfly", "train", *tables, "-o", model, *options))
    assert said["train.other_run.bytes_percent"] > 95
    command = [TARGET / "mayfly", "predict", "--model", model, runs[1].with_suffix(".profile"), "--json"]
    answers = [json.loads(line)["class"] for line in run(*command).splitlines()]
    rows = pq.read_table(tables[1], columns=["stack"])["stack"].to_pylist()
    class_of = {stack.split("@")[0]: answer for stack, answer in zip(rows, answers, strict=True)}
    assert (class_of["brief"], class_of["kept"]) == (0, 6)
