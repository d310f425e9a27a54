"""Memory of containers' processes."""

import contextlib
from pathlib import Path


def processes(first: int) -> list[int]:
    """A process and all its descendants."""
    found = [first]
    for process in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def pss_mib(containers: list[int]) -> float:
    """PSS of these processes and all their descendants: shared pages divided by their sharers."""
    total = 0
    for process in (each for container in containers for each in processes(container)):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024
