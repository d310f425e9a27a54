"""The kernel's own path: madvise(MADV_UPM) beside ksmd on Mayfly's kernel, in a VM. Without KVM that is
emulation: its times compare with one another, not with those of the engine, which runs on the machine
itself."""

import json
import subprocess
from pathlib import Path

from bench.outcome import ROOT, BenchError

BUILD = ROOT / "kernel" / "build"
TIMING = ROOT / "kernel" / "upm" / "tests" / "timing"


def output_of(what: str, *command) -> str:
    ran = subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if ran.returncode:
        said = [line for line in (ran.stderr + ran.stdout).splitlines() if line and not line.startswith("[")]
        raise BenchError(f"{what} failed: {said[-1] if said else f'exit code {ran.returncode}'}")
    return ran.stdout


def measure(folder: Path | None, quick: bool) -> dict[str, float]:
    """What kernel/upm/tests/timing.c prints: 4 processes with the same memory, merged by UPM and then by
    ksmd."""
    folder = folder or Path(output_of("kernel/build", BUILD).strip().splitlines()[-1])
    words = ["--processes", 2, "--mib", 8] if quick else ["--processes", 4, "--mib", 64]
    return json.loads(output_of("kernel/upm/tests/timing", TIMING, folder, *words))
