"""Programs of others that a comparison runs: asked, ended, and what they said last."""

import subprocess
from collections.abc import Iterable

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


def end(process: subprocess.Popen, patience_s: float = 20) -> None:
    """Asks the process to end, and kills it if it does not."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
