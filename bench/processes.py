"""Programs of others that a comparison runs: asked, ended, and what they said last."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.outcome import BenchError


def last_words(said: str, otherwise: object = "it says nothing") -> str:
    lines = said.strip().splitlines()
    return lines[-1] if lines else str(otherwise)


def ask(command: Iterable, what: str, timeout_s: float | None = 600, said: str = "", **more) -> str:
    """Runs a program to its end, and gives what it printed; a BenchError if it complains."""
    options = {"input": said, "capture_output": True, "text": True, "timeout": timeout_s} | more
    try:
        done = subprocess.run(list(map(str, command)), **options)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{what}: did not end in {timeout_s:.0f} s") from error
    if done.returncode:
        raise BenchError(f"{what}: {last_words(done.stderr or done.stdout, f'exit code {done.returncode}')}")
    return done.stdout


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def end(process: subprocess.Popen, patience_s: float = 20) -> None:
    """Asks the process to end, and kills it if it does not."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def started(command: list, what: str, log: Path, ready: Callable[[], Any], patience_s: float) -> Iterator:
    """Runs a service of ours that writes to `log` until the body ends. Gives the process, and what `ready`
    said when it was."""
    with log.open("wb") as file:
        more = {"env": os.environ | {"NO_COLOR": "1"}, "stdin": subprocess.DEVNULL, "stdout": file}
        process = subprocess.Popen(list(map(str, command)), stderr=file, **more)
    said = lambda: last_words(log.read_text(errors="replace"))  # noqa: E731
    try:
        deadline = time.monotonic() + patience_s
        while not (found := ready()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{what} did not start: {said()}")
            time.sleep(0.02)
        yield process, found
        if process.poll() is not None:
            raise BenchError(f"{what} ended by itself: {said()}")
    finally:
        end(process, 30)
    if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise BenchError(f"{what} ended with {process.returncode}: {said()}")
