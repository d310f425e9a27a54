"""A process that is told what to do on its standard input and answers with lines of JSON; one that ends early
is an error with its last words."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator

from bench.outcome import BenchError
from bench.processes import last_words


class Talker:
    def __init__(self, name: str, command: list[str], environment: dict[str, str]):
        self.name = name
        self.process = subprocess.Popen(
            command,
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
            said = last_words(self.process.stderr.read(), f"exit code {self.process.wait()}")
            raise BenchError(f"{self.name}: ended early: {said}")
        return json.loads(line)

    def tell(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def ask(self, text: str) -> dict[str, float]:
        self.tell(text)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def fleet() -> Iterator[list]:
    """Processes that end with the block, however it ends."""
    started: list[Talker] = []
    try:
        yield started
    finally:
        for one in started:
            one.end()
