"""The changed Go runtimes, without the simulator: all get the same sums under a strained collector."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

GO = Path(__file__).resolve().parents[1]
RUNTIMES = [("heap-go", "0"), ("heap-go", "1"), ("heap-go-marks", "0"), ("heap-go-populate", "1")]
ROUNDS = "30"
# Instead of returning a freed arena's memory: unmaps it, so that a touch of it faults.
GIVEN_BACK = "madvise(unsafe.Pointer(arena), mementoArenaBytes(class), dontNeed)"
GONE = "_ = dontNeed; munmap(unsafe.Pointer(arena), mementoArenaBytes(class))"


def run(*command, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, env={**os.environ, **more})


def must(*command, **more: str) -> str:
    done = run(*command, **more)
    assert done.returncode == 0, f"{command}: {done.stdout[:300]} {done.stderr[:600]}"
    return done.stdout


def built(scripts: Path, folder: Path) -> Path:
    folder.mkdir()
    must(scripts / "build", folder, GO / "tests")
    return folder


def same_sums(programs: Path, processors: int) -> None:
    variables = {"GOMAXPROCS": str(processors), "GODEBUG": "gcstoptheworld=1", "GOGC": "off"}
    outputs = {
        (name, side): must(programs / name, ROUNDS, **variables, MEMENTO=side) for name, side in RUNTIMES
    }
    assert len(set(outputs.values())) == 1, outputs


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return built(GO, tmp_path_factory.mktemp("go") / "programs")


@pytest.mark.parametrize("processors", [1, 4])
def test_all_runtimes_get_the_same_sums(programs, processors):
    same_sums(programs, processors)


def test_memento_is_chosen_by_the_environment(programs):
    """A process that may have no more than 4 GiB of addresses cannot reserve Memento's, and says so."""
    limited = ["bash", "-c", f"ulimit -v 4000000; exec {programs}/heap-go 1"]
    for side, words in (("0", 0), ("1", 1), (None, 0)):
        done = run(*limited, **({"MEMENTO": side} if side else {}))
        assert done.stderr.count("memento: cannot reserve addresses") == words, (side, done.stderr[:300])


def test_a_refused_object_is_returned_to_the_program(programs):
    """The simulator charges the call of mallocgc again then, so that no other may be returned to."""
    functions = "^runtime[.]memento(Replaced|Small|Beneath)$"
    text = must("go", "tool", "objdump", "-s", functions, programs / "heap-go")
    jumps = [line.split()[-2:] for line in text.splitlines() if "CALL" in line or "(SB)" in line]
    assert [name for kind, name in jumps if kind == "CALL"] == ["runtime.mementoAlloc(SB)"], text
    named = {name.removesuffix(".abi0") for kind, name in jumps if kind == "JMP"}
    assert named == {f"runtime.memento{one}(SB)" for one in ("Small", "Beneath", "Software")}, text


def test_a_populated_heap_has_its_pages_before_they_are_touched(programs):
    def pages(name: str) -> int:
        """That a process has when it has hardly begun: its argument is no number of rounds."""
        process = subprocess.Popen([programs / name, "none"], stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return used.ru_minflt

    plain, populated = pages("heap-go"), pages("heap-go-populate")
    assert populated >= plain + 900, f"of 4 MiB that its heap maps first: {plain} pages, and {populated}"


def test_memory_of_freed_arenas_is_not_touched(tmp_path):
    shutil.copytree(GO, tmp_path / "go")
    arenas = tmp_path / "go/runtime/memento_arenas.go"
    before = arenas.read_text()
    assert before.count(GIVEN_BACK) == 1, "memory is given back in another way now: change this test"
    arenas.write_text(before.replace(GIVEN_BACK, GONE))
    same_sums(built(tmp_path / "go", tmp_path / "unmapped"), 1)


@pytest.mark.parametrize(
    "kind, name, before, after",
    [
        ("memento", "malloc.go", "func mallocgc(size uintptr, ", "func mallocgc(bytes uintptr, "),
        ("marks", "malloc.go", "func mallocgc(size uintptr, ", "func mallocgc(bytes uintptr, "),
        ("populate", "mem_linux.go", "func sysMapOS(", "func sysMapped("),
    ],
)
def test_a_runtime_without_the_lines_to_change_is_refused_in_one_line(kind, name, before, after, tmp_path):
    root = tmp_path / "root"
    changed = root / "src/runtime" / name
    shutil.copytree(Path(must("go", "env", "GOROOT").strip()) / "src/runtime", changed.parent)
    changed.write_text(changed.read_text().replace(before, after))
    other = root / "bin/go"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\n[ "$1" = env ] && echo {root} || echo go version other\n')
    other.chmod(0o755)
    done = run(GO / "overlay", kind, tmp_path / kind, PATH=f"{other.parent}:{os.environ['PATH']}")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"go version other: its runtime/{name} has no line" in done.stderr
