"""Third-party programs that a comparison runs: started, ended, and their last messages."""

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


def last_words(output: str, otherwise: object = "it printed nothing") -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else str(otherwise)


def ask(command: Iterable, what: str, timeout_s: float | None = 600, input_text: str = "", **more) -> str:
    """Runs a program to its end and returns its output; a BenchError if it fails."""
    options = {"input": input_text, "capture_output": True, "text": True, "timeout": timeout_s} | more
    try:
        done = subprocess.run(list(map(str, command)), **options)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{what}: did not end in {timeout_s:.0f} s") from error
    if done.returncode:
        raise BenchError(f"{what}: {last_words(done.stderr or done.stdout, f'exit code {done.returncode}')}")
    return done.stdout


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of the loopback that no process has now."""
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def end(process: subprocess.Popen, patience_s: float = 20) -> None:
    """Sends SIGTERM to the process, and kills it if it does not end."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def started(command: list, what: str, log: Path, ready: Callable[[], Any], patience_s: float) -> Iterator:
    """Runs a service that writes to `log` until the body ends. Yields the process, and the first true result
    of `ready`."""
    with log.open("wb") as file:
        more = {"env": os.environ | {"NO_COLOR": "1"}, "stdin": subprocess.DEVNULL, "stdout": file}
        process = subprocess.Popen(list(map(str, command)), stderr=file, **more)
    message = lambda: last_words(log.read_text(errors="replace"))  # noqa: E731
    try:
        deadline = time.monotonic() + patience_s
        while not (found := ready()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{what} did not start: {message()}")
            time.sleep(0.02)
        yield process, found
        if process.poll() is not None:
            raise BenchError(f"{what} ended by itself: {message()}")
    finally:
        end(process, 30)
    if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise BenchError(f"{what} ended with {process.returncode}: {message()}")
