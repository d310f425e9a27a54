"""A file of samples, one line for each run: a comparison that takes hours can be measured in pieces."""

import hashlib
import json
from pathlib import Path
from typing import Any

from bench.outcome import BenchError


class Samples:
    """The samples in `path`, if it exists; with `None` none are kept. All are of `program`, and of the
    settings in `more`.

    A key is a tuple of words and numbers; its value is any JSON value.
    """

    def __init__(self, path: Path | None, program: Path, more: dict[str, Any]):
        self.path = path
        self.runs: dict[tuple, Any] = {}
        if path is None:
            return
        of = {"program": hashlib.sha256(program.read_bytes()).hexdigest()} | more
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(of) + "\n")
        first, *lines = path.read_text().splitlines() or [""]
        try:
            if json.loads(first) != of:
                raise BenchError(f"{path}: its samples are of another {' or '.join(of)}: delete it")
            for line in lines:
                *key, kept = json.loads(line)
                self.runs[tuple(key)] = kept
        except ValueError as error:
            raise BenchError(f"{path}: not a file of samples: {error}") from error

    def get(self, key: tuple) -> Any:
        return self.runs.get(key)

    def add(self, key: tuple, kept: Any) -> None:
        self.runs[key] = kept
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([*key, kept]) + "\n")
