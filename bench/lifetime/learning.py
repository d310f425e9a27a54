"""From a profile to a model and its accuracy, and from a trace to the memory with right lifetimes: by the
commands that users run."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compiled import BUILD
from bench.lifetime import variants
from bench.lifetime.workloads import Size, Workload
from bench.outcome import BenchError
from bench.processes import ask

FOLDER = BUILD / "lifetime"
HIDDEN = 64  # of a model that runs use


@dataclass
class Model:
    path: Path
    accuracy: dict[str, float]  # `train.*` of `mayfly train --json`


def mayfly(*arguments, timeout_s: float) -> str:
    """The standard output of a `mayfly` command."""
    return ask([variants.mayfly(), *arguments], f"mayfly {arguments[0]}", timeout_s)


def profile(workload: Workload, size: Size, seed: int) -> Path:
    """Runs the workload under `mayfly profile`; returns the path of its table of contexts."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    output = FOLDER / f"{workload.name}-{seed}"
    workload.run(variants.profiled(output, workload.sample_every), size, seed)
    return output.with_suffix(".parquet")


def model_path(workload: Workload, hidden: int) -> Path:
    return FOLDER / f"{workload.name}-{hidden}.mayfly-model"


def train(workload: Workload, profiles: list[Path], hidden: int = HIDDEN, more: Sequence[str] = ()) -> Model:
    """A model of the profiles, with its accuracy on contexts held out of training."""
    path = model_path(workload, hidden)
    text = mayfly("train", "--json", "-o", path, "--hidden", hidden, *more, *profiles, timeout_s=1200)
    return Model(path, json.loads(text.strip().splitlines()[-1]))


def oracle(workload: Workload, size: Size, seed: int) -> dict:
    """The results of `mayfly replay` for a traced run: Figs. 1, 2 and 9. The trace is large and not kept."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    needed, free = workload.trace_gib * size.scale, shutil.disk_usage(FOLDER).free / (1 << 30)
    if free < needed:
        raise BenchError(f"the trace takes {needed:.1f} GiB, and {FOLDER} has {free:.1f}")
    trace = FOLDER / f"{workload.name}.trace"
    try:
        workload.run(variants.traced(trace), size, seed)
        text = mayfly("replay", trace, "--allocator", "recorded,mayfly,packed", "--json", timeout_s=7200)
    finally:
        trace.unlink(missing_ok=True)
    return json.loads(text)
