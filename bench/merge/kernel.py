"""The kernel's own path: madvise(MADV_UPM) beside ksmd on Mayfly's kernel, in a VM. Without KVM that is
emulation: its times compare with one another, not with those of the engine, which runs on the machine
itself."""

import json
from pathlib import Path

from bench.outcome import ROOT
from bench.processes import ask

BUILD = ROOT / "kernel" / "build"
NEWEST = "7.3"
TIMING = ROOT / "kernel" / "upm" / "tests" / "timing"


def built(folder: Path | None) -> Path:
    """The folder of the kernel, which is built if none is given."""
    return folder or Path(ask([BUILD, "--kernel", NEWEST], "kernel/build", 7200).strip().splitlines()[-1])


def measure(folder: Path | None, quick: bool) -> dict[str, float]:
    """The output of kernel/upm/tests/timing.c: 4 processes with the same memory, merged by UPM and then by
    ksmd."""
    words = ["--processes", 2, "--mib", 8] if quick else ["--processes", 4, "--mib", 64]
    return json.loads(ask([TIMING, built(folder), *words], "kernel/upm/tests/timing", 7200))
