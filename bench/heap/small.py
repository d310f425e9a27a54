"""The cost of an allocator to programs that need hardly any memory: at start, and while they wait.

`true` and `python3 -c pass` are started again and again; `sleep`, a Python that waits and a shell that waits
are looked at while they wait. Private memory is what a process has written and has for itself alone.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.heap.allocators import Allocator
from bench.heap.machine import maps_name, memory_of, peak_rss_kib, proc_kib
from bench.heap.measure import Numbers, pages_for
from bench.heap.server import tool
from bench.outcome import BenchError

PYTHON = "/usr/bin/python3"


def python() -> str:
    return PYTHON if os.path.exists(PYTHON) else tool("python3")


def run(allocator: Allocator, is_quick: bool) -> Numbers:
    numbers: Numbers = {}
    environment = allocator.environment()
    with pages_for(allocator):
        starts = {"true": [tool("true")], "python": [python(), "-I", "-c", "pass"]}
        for name, command in starts.items():
            costs = [started_ms(command, environment) for _ in range(5 if is_quick else 20)]
            numbers[f"{name}.start_ms"] = median(costs)
        waits = {"sleep": [tool("sleep"), "60"], "python": [python(), "-I", "-c", "input()"]}
        waits["shell"] = [shutil.which("bash") or tool("sh"), "-c", "read line"]
        for name, command in waits.items():
            with waiting(command, environment) as pid:
                if not maps_name(pid, allocator.library):
                    raise BenchError(f"{command[0]} does not have {allocator.library} loaded")
                (private,) = proc_kib(f"/proc/{pid}/smaps_rollup", "Private_Dirty")
                numbers[f"{name}.private_kib"] = private
                numbers[f"{name}.ranges_kib"] = memory_of(pid)["ranges_kib"]
                numbers[f"{name}.peak_rss_kib"] = peak_rss_kib(pid)
    numbers["time_ms"] = numbers["true.start_ms"] + numbers["python.start_ms"]
    numbers["peak_rss_kib"] = numbers["python.peak_rss_kib"]
    return numbers


def started_ms(command: list[str], environment: dict[str, str]) -> float:
    """Processor time of one run. (Its ru_maxrss may be this process's: a child begins with that.)"""
    process = os.posix_spawn(command[0], command, environment)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise BenchError(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return (usage.ru_utime + usage.ru_stime) * 1000


@contextmanager
def waiting(command: list[str], environment: dict[str, str]) -> Iterator[int]:
    """The id of a process that has started and waits for its input."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        asleep = 0
        while asleep < 10:  # half a second: it has started, and waits
            time.sleep(0.05)
            if process.poll() is not None:
                raise BenchError(f"{command[0]} ended: {process.stderr.read().decode().strip()[-200:]}")
            asleep = asleep + 1 if state(process.pid) == "S" else 0
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def state(pid: int) -> str:
    """The letter for what the process does: S sleeps until an event."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
