"""A process that reads commands from its standard input and answers with lines of JSON. If it ends early, the
error has its last lines of stderr."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.outcome import BenchError
from bench.processes import last_words


class JsonProcess:
    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], folder: Path | None = None
    ):
        self.name = name
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            error = last_words(self.process.stderr.read(), f"exit code {self.process.wait()}")
            raise BenchError(f"{self.name}: ended early: {error}")
        return json.loads(line)

    def send(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # `answer` reports the reason
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def ask(self, text: str) -> dict[str, float]:
        self.send(text)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def fleet() -> Iterator[list]:
    """A list of processes, which end with the block in any case."""
    started: list[JsonProcess] = []
    try:
        yield started
    finally:
        for one in started:
            one.end()
