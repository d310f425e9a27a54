"""A program of one's own: its files, libraries and scripts reach the guest; a run that is interrupted says so
in one line, keeps what was counted and leaves no folders."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_files_of_this_machine_reach_the_guest(folder, sim, image):
    (folder / "data").mkdir()
    (folder / "data/words.txt").write_text("alpha beta\n")
    (folder / "data/more.txt").write_text("gamma\n")
    (folder / "unnamed.txt").write_text("delta\n")
    (folder / "read.sh").write_text(
        'while read line; do echo "$line"; done <"$1"\n'
        'while read line; do echo "$line"; done </etc/passwd\n'
        'while read line; do echo "$line"; done <"${2#--more=}"\n'
        "while read line; do echo $line; done <unnamed.txt\n"
    )
    # /etc/passwd of this machine is named, and the guest has its own.
    command = ["sh", "read.sh", "data/words.txt", "--more=data/more.txt", "/etc/passwd"]
    done = sim("--image", str(image), "--file", "unnamed.txt", "--", *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alpha beta\nthe image's\ngamma\ndelta\n"


def test_a_script_and_a_dynamic_program_of_this_machine_run(folder, sim, image):
    (folder / "hello.c").write_text('#include <stdio.h>\nint main(void) { return puts("dynamic") < 0; }\n')
    subprocess.run(["gcc", "-o", "dynamic", "hello.c"], cwd=folder, check=True)
    (folder / "script").write_text("#!/bin/sh\necho script $1\n")
    (folder / "script").chmod(0o755)
    for command, output in ((["./dynamic"], "dynamic\n"), (["./script", "5"], "script 5\n")):
        done = sim("--image", str(image), "--", *command)
        assert (done.returncode, done.stdout) == (0, output), done.stderr


@pytest.fixture(scope="module")
def go(folder):
    """A Go program as its author builds it, ./hello, and as sim/programs/go/build does, ./hello-go."""
    source = folder / "go/hello"
    source.mkdir(parents=True)
    (source / "go.mod").write_text("module hello\n\ngo 1.19\n")
    (source / "main.go").write_text('package main\n\nfunc main() { println("go", len(make([]int, 9))) }\n')
    build = ["go", "build", "-o", folder / "hello", "."]
    subprocess.run(build, cwd=source, env=os.environ | {"CGO_ENABLED": "0"}, check=True)
    subprocess.run([ROOT / "sim/programs/go/build", folder, folder / "go"], check=True)


def test_advice_for_a_go_program_is_go_s(sim, go):
    done = sim("--compare", "--", "./hello")
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 125 and "sim/programs/go/build FOLDER PROGRAMS" in line, line
    done = sim("--compare", "--", "./hello-go")
    assert done.returncode == 0 and done.stdout == "go 9\n", done.stderr
    assert "pages of the program" in done.stderr and "price of a billion runs, $" in done.stderr
    assert "of 0 obj-alloc" not in done.stderr and " obj-alloc" in done.stderr


def start(sim, folder, *words):
    """A run in a session of its own that has counted something, and where its temporary folders are."""
    temporary = folder / f"temporary-{time.monotonic_ns()}"
    temporary.mkdir()
    process = subprocess.Popen(
        [*sim.command, *words],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, temporary


def wait_for(found, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.1)
    raise AssertionError("not in time")


def counted(folder):
    """Instructions, as the plugin reports them now and then."""
    return max((int((path.read_text().split() or [0])[0]) for path in folder.rglob("progress")), default=0)


def children(process):
    path = Path(f"/proc/{process.pid}/task")
    return [int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()]


@pytest.mark.parametrize("keeps", [True, False])
def test_an_interrupted_run_keeps_its_counts(sim, folder, keeps):
    out = ["--out", "interrupted"] if keeps else []
    process, temporary = start(sim, folder, *out, "--", "./threads", "apart", "1000000000")
    progress = (folder / "interrupted") if keeps else temporary
    wait_for(lambda: counted(progress) >= 2_000_000)
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    [line] = errors.strip().splitlines()
    assert process.returncode == 130 and output == "", line
    assert line.startswith("mayfly: interrupted after ") and " instructions" in line
    assert list(temporary.iterdir()) == []
    if keeps:
        assert line.endswith(f"; partial statistics are in {folder}/interrupted")
        statistics = json.loads((folder / "interrupted/stats.json").read_text())
        assert statistics["partial"] and statistics["instructions"] >= 2_000_000
        assert statistics["broken_laws"] == []


def test_a_killed_qemu_is_named(sim, folder):
    process, temporary = start(sim, folder, "--out", "killed", "--", "./threads", "apart", "1000000000")
    wait_for(lambda: (folder / "killed/stats.json").exists())
    [qemu] = children(process)
    os.kill(qemu, signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    [line] = errors.strip().splitlines()
    assert process.returncode == 125 and output == "", line
    assert line.startswith(
        "mayfly: QEMU was ended by signal 9 (the kernel kills when memory is short) after "
    )
    assert line.endswith(f"; partial statistics are in {folder}/killed")
    statistics = json.loads((folder / "killed/stats.json").read_text())
    assert statistics["partial"] and statistics["partial_reason"] == "QEMU was killed"
    assert statistics["cycles"] > 0 and list(temporary.iterdir()) == []


def test_both_sides_of_a_comparison_run_at_once(sim, folder, go):
    process, temporary = start(sim, folder, "--compare", "--", "./hello-go")
    both = wait_for(lambda: len(children(process)) == 2 and children(process))
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143 and len(errors.strip().splitlines()) == 1, errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in both) and list(temporary.iterdir()) == []
