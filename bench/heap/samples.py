"""A file of samples, one line for each run: a comparison that takes an hour can be measured in pieces."""

import hashlib
import json
from pathlib import Path

from bench.heap import allocators
from bench.heap.measure import Numbers
from bench.outcome import BenchError

Key = tuple[str, str, int]  # workload, allocator, round


class Samples:
    """Those of `path`, if it is there; `None`: none are kept. All are of one library and size."""

    def __init__(self, path: Path | None, quick: bool):
        self.path = path
        self.runs: dict[Key, Numbers] = {}
        if path is None:
            return
        library = allocators.find("mayfly", {}).library
        what = {"library": hashlib.sha256(library.read_bytes()).hexdigest(), "quick": quick}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(what) + "\n")
        first, *lines = path.read_text().splitlines() or [""]
        try:
            if json.loads(first) != what:
                raise BenchError(f"{path}: its samples are of another library or size: delete it")
            for line in lines:
                workload, name, number, numbers = json.loads(line)
                self.runs[workload, name, number] = numbers
        except ValueError as error:
            raise BenchError(f"{path}: not a file of samples: {error}") from error

    def of(self, key: Key) -> Numbers | None:
        return self.runs.get(key)

    def add(self, key: Key, numbers: Numbers) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([*key, numbers]) + "\n")
