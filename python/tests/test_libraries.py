"""advise and pack with the real libraries: pandas, Arrow, scikit-learn, ONNX Runtime, safetensors. Two
processes with the same data share nearly all of it, and their answers stay the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("pandas", "pyarrow", "sklearn", "onnxruntime", "safetensors"):
    pytest.importorskip(needed)

ROOT = Path(__file__).resolve().parents[2]

BEGIN = """
import sys, numpy, mayfly
from mayfly.regions import regions_of, whole_pages
junk = [bytearray(int(n)) for n in numpy.random.default_rng(int(sys.argv[1])).integers(1, 90000, 300)]
rng = numpy.random.default_rng(1)
"""

# Each makes `thing`, packs it, and sets `same` to whether all its results are unchanged.
MAKE = {
    "pandas": """
import pandas
n = 100_000
frame = pandas.DataFrame({"x": rng.random(n), "n": rng.integers(0, 9, n),
    "kind": pandas.Categorical(rng.integers(0, 3, n)), "name": [f"name {i}" for i in range(n)],
    "when": pandas.date_range("2020", periods=n, freq="s")})
frame = frame.set_index("when")
thing = mayfly.pack(frame)
pandas.testing.assert_frame_equal(frame, thing)
same = lambda: thing.groupby("n").x.sum().equals(frame.groupby("n").x.sum()) and thing.equals(frame)
""",
    "arrow": """
import pyarrow, pyarrow.compute
n = 100_000
table = pyarrow.table({"x": rng.random(n), "s": [f"text {i}" for i in range(n)], "n": rng.integers(0, 9, n)})
thing = mayfly.pack(table)
same = lambda: thing.equals(table) and thing.validate(full=True) is None
""",
    "scikit-learn": """
from sklearn.ensemble import RandomForestClassifier
inputs = rng.random((20000, 8))
model = RandomForestClassifier(6, random_state=1).fit(inputs, inputs.sum(1) + rng.random(20000) > 4.5)
thing = mayfly.pack(model)
same = lambda: (thing.predict_proba(inputs) == model.predict_proba(inputs)).all()
""",
    "safetensors": """
from safetensors.numpy import load_file, save_file
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
made = {f"layer.{i}": rng.random((100 + i, 800), dtype="f4") for i in range(30)}
save_file(made, path)
thing = mayfly.pack(load_file(path))
same = lambda: thing.keys() == made.keys() and all((thing[k] == made[k]).all() for k in made)
""",
}

END = """
want = sum(page.size_bytes for page in whole_pages(regions_of(thing)))
assert want > 1 << 20 and same()
mayfly.advise(thing)
assert same()
stats = mayfly.stats()
print(stats["merged_pages"] * 4096 / want, want, flush=True)
sys.stdin.read()
"""

ONNX = """
import onnxruntime
def field(number, value):  # of a protocol buffer
    def varint(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value
def tensor(name, array):
    shape = b"".join(field(1, n) for n in array.shape)
    return shape + field(2, 1) + field(8, name) + field(9, array.tobytes())
def value(name, *shape):
    dims = b"".join(field(1, field(1, n)) for n in shape)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))
wide, layers = 1024, 4
weights = [rng.random((wide, wide), dtype="f4") - 0.5 for _ in range(layers)]
node = lambda i: field(1, f"x{i}") + field(1, f"w{i}") + field(2, f"x{i + 1}") + field(4, "MatMul")
nodes = b"".join(field(1, node(i)) for i in range(layers))
graph = nodes + field(2, "g") + b"".join(field(5, tensor(f"w{i}", w)) for i, w in enumerate(weights))
graph += field(11, value("x0", 1, wide)) + field(12, value(f"x{layers}", 1, wide))
model = field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = 4
plain = onnxruntime.InferenceSession(model, settings)
asked = {"x0": rng.random((1, wide), dtype="f4")}
before = plain.run(None, asked)[0]
del plain
with mayfly.advising(heap=True) as shared:
    session = onnxruntime.InferenceSession(model, settings)
assert (session.run(None, asked)[0] == before).all()
want = sum(w.nbytes for w in weights)
print(mayfly.stats()["merged_pages"] * 4096 / want, want, flush=True)
try:
    mayfly.advise(session)
except TypeError as error:
    assert "advising" in str(error), error
else:
    raise AssertionError("a session exposes its weights")
sys.stdin.read()
"""


def parts_merged(code, store):
    """The share of its data that each of two processes has found in the store; the first uploads it."""
    environment = os.environ | store | {"PYTHONPATH": str(ROOT / "python")}
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, "1"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as first:
        line = first.stdout.readline()
        assert line, first.stderr.read()
        second = subprocess.run(
            [sys.executable, "-c", BEGIN + code, "2"],
            env=environment,
            input="",
            capture_output=True,
            text=True,
            timeout=300,
        )
        first.communicate("")
    assert second.returncode == 0, second.stderr
    return float(line.split()[0]), float(second.stdout.split()[0])


@pytest.mark.parametrize("library", MAKE)
def test_two_processes_share_packed_objects(library, store):
    _, found = parts_merged(MAKE[library] + END, store)
    assert found > 0.97, found


def test_onnx_runtime_hides_its_weights(store):
    _, found = parts_merged(ONNX, store)
    assert found > 0.9, found


FRAME_OF_STRINGS = """
import gc, pandas, pyarrow
frame = pandas.DataFrame({"text": pandas.array([f"row {i} " * 8 for i in range(300000)], dtype="str")})
assert hasattr(frame["text"].array, "_pa_array"), type(frame["text"].array)
def anonymous_kib():
    with open("/proc/self/smaps_rollup") as file:
        return int(file.read().split("Anonymous:")[1].split()[0])
gc.collect()
mayfly.library.give_back_freed()
before = anonymous_kib()
frame = mayfly.pack(frame)
mayfly.advise(frame)
after = anonymous_kib()
data_kib = frame["text"].str.len().sum() // 1024
print(before, after, data_kib, pyarrow.default_memory_pool().backend_name)
assert after < before - 0.8 * data_kib, (before, after, data_kib)
"""


def test_packing_a_frame_of_strings_saves_its_memory(store):
    """Arrow's pool would keep what has been packed."""
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + FRAME_OF_STRINGS, "1"],
        env=os.environ | store | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    print(ran.stdout)
