"""A file of samples, one line for each piece of an experiment: hours of measuring can be done in pieces."""

import hashlib
import json
from pathlib import Path

from bench.outcome import BenchError
from bench.vm.experiments import Samples
from bench.vm.guest import Guest, mayfly

Key = tuple[str, str, str]  # experiment, contender, piece


class Kept:
    """Those of `path`, if it is there; `None`: none are kept. All are of one program and size."""

    def __init__(self, path: Path | None, quick: bool):
        self.path = path
        self.pieces: dict[Key, Samples] = {}
        if path is None:
            return
        program = hashlib.sha256(mayfly().read_bytes()).hexdigest()
        what = {"program": program, "quick": quick, "accelerator": Guest.accelerator}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(what) + "\n")
        first, *lines = path.read_text().splitlines() or [""]
        try:
            if json.loads(first) != what:
                raise BenchError(
                    f"{path}: its samples are of another program, size or accelerator: delete it"
                )
            for line in lines:
                experiment, contender, piece, samples, accelerators = json.loads(line)
                self.pieces[experiment, contender, piece] = samples
                Guest.accelerators.update(accelerators)
        except ValueError as error:
            raise BenchError(f"{path}: not a file of samples: {error}") from error

    def of(self, key: Key) -> Samples | None:
        return self.pieces.get(key)

    def add(self, key: Key, samples: Samples) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([*key, samples, sorted(Guest.accelerators)]) + "\n")
