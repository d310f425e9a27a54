"""libmemento.so without the simulator: programs run with it preloaded do what they do without it, and every
address and outcome agrees with the model's units and with the reference model (memento-replay)."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
LIBRARY = TARGET / "libmemento.so"
WRONG = {
    "double": "double free",
    "inside": "no object starts there",
    "header": "no object starts there",
    "unused": "no arena is there",
    "gone": "no arena is there",
}
PYTHON = (
    "import json, collections; d = [{str(i): [i, i / 7, 'x' * (i % 600)]} for i in range(20000)]; "
    "s = json.dumps(d); assert json.loads(s) == d; print(len(s), collections.Counter(s).most_common(3))"
)
PYTHON_THREADS = (
    "import threading as t; ts = [t.Thread(target=lambda: [str(i) for i in range(9999)]) for _ in range(8)]; "
    "[x.start() for x in ts]; [x.join() for x in ts]; print('well')"
)
# Programs of this system.
ORDINARY = {
    "python": ["/usr/bin/python3", "-c", PYTHON],
    "python-threads": ["/usr/bin/python3", "-c", PYTHON_THREADS],
    "bash": ["bash", "-c", "x=; for i in {1..3000}; do x=$x$i; done; echo ${#x}; ls / | sort | head -3"],
    "g++": ["g++", "-O1", "-x", "c++", "-S", "-o", "-", HERE / "programs/containers.cc"],
    "sort": ["sort", "--parallel=2", Path(__file__)],
}


def run(*command, preload=None, **more):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("MEMENTO")}
    env |= {k: str(v) for k, v in more.items()} | {"PYTHONHASHSEED": "1"}
    if preload:
        env["LD_PRELOAD"] = str(preload)
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=1800, env=env
    )


def must(*command, **more):
    done = run(*command, **more)
    assert done.returncode == 0, f"{command}: {done.stderr.strip()[-300:]}"
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The programs, by C's and C++'s compilers."""
    folder = tmp_path_factory.mktemp("made")
    for source in (HERE / "programs").iterdir():
        compiler = ["g++", "-std=c++17"] if source.suffix == ".cc" else ["gcc", "-std=gnu11"]
        flags = ["-O2", "-g", "-pthread", "-fno-builtin", "-Wno-use-after-free"]
        must(*compiler, *flags, "-o", folder / source.stem, source)
    return folder


@pytest.fixture(scope="module")
def cpython(tmp_path_factory):
    """`python`, which MEMENTO=1 has use the instructions."""
    if not list(Path("/usr/lib/python3.11").glob("config-3.11-*/libpython3.11.a")):
        pytest.skip("CPython is linked from Debian 12's libpython3.11-dev, which this system lacks")
    folder = tmp_path_factory.mktemp("cpython")
    must(HERE.parent / "cpython/build", folder)
    return folder


@pytest.fixture
def journalled(tmp_path):
    """Runs with a journal for each process, and replays them all."""

    def journalled(*command, preload=LIBRARY, **more):
        out = must(*command, preload=preload, MEMENTO_JOURNAL=tmp_path / "%p", **more)
        journals = list(tmp_path.iterdir())
        assert journals, "no journal was written"
        for journal in journals:
            must(TARGET / "memento-replay", journal)
            journal.unlink()
        return out

    return journalled


@pytest.mark.parametrize("eager, whole_pages", [(1, 0), (0, 0), (1, 1)])
def test_random_calls_of_the_interface(made, journalled, pytestconfig, eager, whole_pages):
    choices = {"MEMENTO_EAGER": eager, "MEMENTO_WHOLE_PAGES": whole_pages}
    for seed in range(1, pytestconfig.option.seeds + 1):
        journalled(made / "interface", seed, pytestconfig.option.operations, **choices)


@pytest.mark.parametrize("remote", ["exclusive", "batch"])
@pytest.mark.parametrize("program", ["threads", "containers"])
def test_frees_by_another_thread(made, journalled, program, remote):
    journalled(made / program, MEMENTO_REMOTE=remote)


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_free_ends_the_program_with_its_reason(made, tmp_path, kind):
    done = run(made / "wrong", kind, preload=LIBRARY, MEMENTO_JOURNAL=tmp_path / "journal")
    assert done.returncode == -signal.SIGABRT, done
    assert WRONG[kind] in done.stderr and len(done.stderr.splitlines()) == 1, done
    must(TARGET / "memento-replay", tmp_path / "journal")


@pytest.mark.parametrize("name", ORDINARY)
def test_programs_print_the_same_as_without_it(journalled, name):
    assert journalled(*ORDINARY[name]) == must(*ORDINARY[name])


@pytest.mark.parametrize("program", [PYTHON, PYTHON_THREADS], ids=["json", "threads"])
def test_cpython_with_the_instructions_linked_in(cpython, journalled, program):
    with_it = journalled(cpython / "python", "-c", program, preload=None, MEMENTO=1)
    assert with_it == must(cpython / "python", "-c", program)


@pytest.mark.parametrize("name", ["python", "linked", "bash", "containers"])
def test_the_baseline_is_the_same_program_with_its_own_allocator(made, cpython, tmp_path, name):
    """With MEMENTO=0 no object is in the region, and no journal is written."""
    where = "print('\\n600000000000-' in open('/proc/self/maps').read())"
    command = {
        "python": ["/usr/bin/python3", "-c", where],
        "linked": [cpython / "python", "-c", where],
        "bash": ORDINARY["bash"],
        "containers": [made / "containers"],
    }[name]
    preload = None if name == "linked" else LIBRARY
    both = [
        must(*command, preload=preload, MEMENTO=side, MEMENTO_JOURNAL=tmp_path / f"{side}-%p")
        for side in (0, 1)
    ]
    assert not list(tmp_path.glob("0-*")) and list(tmp_path.glob("1-*"))
    assert both == (["False\n", "True\n"] if "600000000000-" in str(command) else [both[1]] * 2)


def test_builds_do_not_know_where_they_are(cpython, tmp_path):
    """The same bytes from sources that lie elsewhere: a path in a file would move a program's layout."""
    elsewhere = tmp_path / "a/longer/way/to/the/sources"
    shutil.copytree(HERE.parent, elsewhere / "sim/shim", ignore=shutil.ignore_patterns("tests"))
    must(elsewhere / "sim/shim/build", CARGO_TARGET_DIR=elsewhere / "target")
    must(elsewhere / "sim/shim/cpython/build", elsewhere)
    for here, there in {
        LIBRARY: elsewhere / "target/release/libmemento.so",
        TARGET / "libpopulate.so": elsewhere / "target/release/libpopulate.so",
        cpython / "python": elsewhere / "python",
    }.items():
        assert here.read_bytes() == there.read_bytes(), f"{here.name} is another file there"


def test_a_librarys_destructor_still_has_its_objects(made, cpython, tmp_path):
    late = tmp_path / "late.so"
    must("gcc", "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", late, HERE / "libraries/late.c")
    must(cpython / "python", "-c", f"import ctypes; ctypes.CDLL('{late}')", MEMENTO=1)
    must(made / "interface", 1, 10, preload=f"{LIBRARY}:{late}")


def test_a_program_without_a_region_runs_in_software_and_warns(made):
    done = run("bash", "-c", f"ulimit -v 1000000; LD_PRELOAD={LIBRARY} {made}/containers")
    assert done.returncode == 0 and "allocates in software" in done.stderr, done
