"""Few contexts: a table of them, in seconds."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from train import progress
from train.__main__ import main
from train.data import contexts, symbols
from train.model import link, model_file, table
from train.model.recipe import FEW_CONTEXTS, Recipe
from train.tests import synthetic

ROOT = Path(__file__).parents[2]


def profile(path, stacks: dict[str, int], sizes: dict[str, int] | None = None) -> str:
    """A profile in which all objects of a stack die within a class."""
    rows = []
    for stack, label in stacks.items():
        counts = [100 * (number == label) for number in range(7)]
        row = {
            "stack": stack,
            "allocations": 100.0,
            "live": 0,
            "bytes": float((sizes or {}).get(stack, 6400)),
        }
        rows.append(row | dict(zip(synthetic.FREED, counts, strict=True)))
    synthetic.write(path, rows)
    return str(path)


def classes(model, *stacks: str) -> list[int]:
    return table.predict(model, [stack.split("@") for stack in stacks]).tolist()


def test_two_contexts_are_enough(tmp_path, capsys):
    path = profile(tmp_path / "p.parquet", {"get@keep@main": 6, "get@drop@main": 0})
    assert main([path, "-o", str(tmp_path / "m"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["train.encoder"], found["train.contexts"], found["train.all.bytes_percent"]) == (
        "table",
        2,
        100,
    )
    assert found["train.model_bytes"] < 4096
    model = model_file.read(tmp_path / "m")
    assert classes(model, "get@keep@main", "get@drop@main", "get@main", "other@keep@main") == [6, 0, -1, -1]
    assert main([path, "--measure", str(tmp_path / "m"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measure.all.bytes_percent"] == 100


def test_inlined_functions_count_and_build_specific_names_do_not(tmp_path):
    path = profile(tmp_path / "p.parquet", {"get@a;b@keep@main": 6, "get@a;b@drop.isra.0@main": 0})
    model = table.make(contexts.load("duckdb", [path]))
    assert classes(model, "get@a@b@keep@main", "get;a;b;drop.constprop.1;main") == [6, 0]


def test_a_function_with_changed_arguments_is_the_same_if_its_name_is_unique(tmp_path):
    path = profile(tmp_path / "p.parquet", {"get(int)@keep(int)@main": 6, "get(int)@drop(int)@main": 0})
    model = table.make(contexts.load("duckdb", [path]))
    assert classes(model, "get(long)@keep()@main", "get()@drop@main") == [6, 0]
    path = profile(tmp_path / "q.parquet", {"get@keep(int)@main": 6, "get@keep(long)@main": 0})
    model = table.make(contexts.load("duckdb", [path]))
    assert classes(model, "get@keep(long)@main", "get@keep(char)@main") == [0, -1]


def test_a_prefix_decides_if_enough_contexts_agree(tmp_path):
    outer = "main@__libc_start_call_main@_start"
    stacks = {f"alloc@string@parse@handle@f{number}@{outer}": 0 for number in range(9)}
    stacks |= {f"alloc@vector@grow@{outer}": 3, f"alloc@map@a@{outer}": 0, f"alloc@map@b@{outer}": 6}
    model = table.make(contexts.load("duckdb", [profile(tmp_path / "p.parquet", stacks)]))
    assert classes(model, *stacks) == list(stacks.values()), "contexts of the profile are known"
    new = ["alloc@string@other", "alloc@vector@f@main", "alloc@map@c@main", "alloc@set@main", "main", ""]
    assert classes(model, *new) == [0, -1, -1, -1, -1, -1]
    assert classes(model, "alloc@vector@grow@main@another_libc") == [3], "the callers of main do not matter"


def test_code_without_a_name_is_unknown_code(tmp_path):
    """No model's file holds code that was generated at run time."""
    stacks = {"get@keep@[anonymous]": 6, "get@drop@[anonymous]": 0, "get@[anonymous]@[anonymous]": 3}
    path = profile(tmp_path / "p.parquet", stacks)
    model = table.make(contexts.load("duckdb", [path]))
    assert classes(model, *stacks) == [6, 0, 3]
    link.link(model, [])
    assert model.steps.tolist() == [model_file.STEP_ENDS], "of frame 0, that of unknown code"
    assert model_file.unpacked_names(model.names)[1] == ["", "drop", "get", "keep"]


def test_the_class_of_most_bytes_decides_for_contexts_of_the_same_functions(tmp_path):
    stacks = {"get@f.part.0@main": 1, "get@f@main": 4}
    for sizes, wanted in [((9, 1000), 4), ((1000, 9), 1)]:
        path = profile(tmp_path / "p.parquet", stacks, dict(zip(stacks, sizes, strict=True)))
        assert classes(table.make(contexts.load("duckdb", [path])), "get@f@main") == [wanted]


def test_a_table_predicts_an_unseen_run_and_another_build(tmp_path, capsys):
    runs = []
    for run in range(3):
        rows = synthetic.contexts(400, seed=1)[: 250 + 50 * run]
        runs.append(str(tmp_path / f"run{run}.parquet"))
        synthetic.write(runs[-1], rows, build=run)
    model = tmp_path / "m"
    assert main([*runs, "-o", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["train.encoder"] == "table" and found["train.other_run.bytes_percent"] > 85
    assert found["train.other_run.bytes_known_percent"] < 100, "some of its contexts are new"
    assert found["train.all.bytes_percent"] > 99
    # The functions of another build, by name.
    other = model_file.read(model)
    frames = link.link(other, symbols.load("duckdb", runs[:1]))
    assert frames["main"] != link.UNKNOWN_FRAME == frames["http::Parser::neverSeen(char const*)"]


def test_the_number_of_contexts_decides(tmp_path):
    few, many = (contexts.load("duckdb", [written(tmp_path, count)]) for count in (100, 1500))
    assert Recipe("auto").chosen_for(few).is_table
    assert len(many) >= FEW_CONTEXTS and Recipe("auto").chosen_for(many).encoder == "lstm-frames"
    assert Recipe("lstm-tokens").chosen_for(few).encoder == "lstm-tokens"


def written(folder, count: int) -> str:
    path = folder / f"{count}.parquet"
    synthetic.write(path, synthetic.contexts(count))
    return str(path)


def test_the_same_profile_gives_the_same_file(tmp_path):
    path = written(tmp_path, 200)
    for name in ("one", "two"):
        assert main([path, "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    read = model_file.read(tmp_path / "one")
    assert model_file.to_bytes(read) == (tmp_path / "one").read_bytes()
    assert (np.diff(read.keys.astype(object)) > 0).all()


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_long_stage_shows_progress(on_terminal):
    code = "import sys; from train import progress\nwith progress.stage('counting'): sys.stdin.read()"
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    said = b""
    with os.fdopen(ours, "rb", buffering=0) as output:
        # The stage lasts until enough output was read. A terminal ends with an error.
        while part := _read(output):
            said += part
            if said.count(b"mayfly: counting") >= (3 if on_terminal else 1):
                child.stdin.close()
    assert child.wait() == 0
    if on_terminal:
        assert said.startswith(b"\r\x1b[2Kmayfly: counting, 0 s") and said.endswith(b"\x1b[2K")
    else:
        assert said == b"mayfly: counting\n"
    assert progress.TICK_SECONDS < 2


def _read(output) -> bytes:
    try:
        return output.read(4096)
    except OSError:
        return b""


def test_a_table_is_made_without_the_packages_of_networks(tmp_path):
    """JAX and matplotlib are large: making a table must not import them."""
    path = profile(tmp_path / "p.parquet", {"get@keep@main": 6, "get@drop@main": 0})
    code = (
        "import sys\nfor name in ('jax', 'optax', 'matplotlib', 'scipy'): sys.modules[name] = None\n"
        "from train.__main__ import main\n"
        "sys.exit(main(sys.argv[1:4]) or main([sys.argv[1], '--measure', sys.argv[3]]))"
    )
    command = [sys.executable, "-c", code, path, "-o", str(tmp_path / "m")]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "first estimate" in done.stderr and (tmp_path / "m").stat().st_size < 4096
