"""later: once in each process, on another thread, and in one process at a time."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import mayfly
import pytest
from mayfly.turns import turn

ROOT = Path(__file__).resolve().parents[2]


def test_later_calls_once_on_its_own_thread():
    may_continue, calls, ended = threading.Event(), [], threading.Event()

    def share():
        may_continue.wait()
        calls.append(threading.current_thread())
        ended.set()

    mayfly.later(share)
    mayfly.later(share)
    assert calls == []  # the caller has not waited
    may_continue.set()
    ended.wait()
    mayfly.later(share)
    for thread in threading.enumerate():
        if thread.name == "mayfly-later":
            thread.join()
    assert len(calls) == 1 and calls[0] is not threading.current_thread()


def test_a_child_calls_later_again():
    def share():
        os.write(writing, b"x")

    reading, writing = os.pipe()
    mayfly.later(share)
    assert os.read(reading, 1) == b"x"
    child = os.fork()
    if child == 0:
        mayfly.later(share)
        for thread in threading.enumerate():
            if thread.name == "mayfly-later":
                thread.join()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"x"


HOLDER = """
import pathlib, sys
from mayfly.turns import turn
with turn(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").touch()
    return tmp_path / "file"


def holder(file):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    return process


def is_free(file):
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_one_process_at_a_time(file):
    one = holder(file)
    assert not is_free(file)
    entered = threading.Event()

    def wait():
        with turn(file):
            entered.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not entered.is_set()
    one.communicate("\n")
    entered.wait()
    waiting.join()


def test_a_killed_or_stopped_process_does_not_delay_others(file):
    one = holder(file)
    with turn(file, longest_s=0):
        assert not is_free(file)  # the holder still has it: this process continued without
    one.kill()
    one.communicate()
    with turn(file):
        assert not is_free(file)


def test_a_child_of_the_holder_does_not_keep_the_lock(file):
    reading, writing = os.pipe()
    with turn(file):
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
    assert is_free(file)
    os.write(writing, b"x")
    os.waitpid(child, 0)


def test_without_file_locks_no_process_waits(file, monkeypatch):
    def refused(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refused)
    with turn(file):
        pass
