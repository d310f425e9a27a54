"""Runs one command on one allocator, and checks that this allocator was in use and the answer right."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable

from bench.heap.allocators import Allocator
from bench.heap.machine import thp_always
from bench.heap.moments import Moments
from bench.outcome import BenchError
from bench.processes import last_words

Numbers = dict[str, float]


def pages_for(allocator: Allocator):
    """The machine's huge-page setting that this allocator is to be measured under, as a context."""
    if not allocator.thp_always:
        return contextlib.nullcontext()
    return thp_always(allocator.khugepaged_fast)


def run(
    allocator: Allocator,
    command: list,
    timeout_s: float = 300,
    watch: Callable[[int], None] | None = None,
    **options,
) -> tuple[str, Numbers]:
    """Runs the command to its end; returns its standard output and its cost.

    `watch` is called with the process's id every few milliseconds while it runs. The peak is that of the
    largest process among the command and the children it waited for. What the program asks for at its moments
    is part of the cost.
    """
    command = [str(part) for part in command]
    moments = Moments()
    with pages_for(allocator), contextlib.closing(moments):
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            env=allocator.environment() | options.pop("extra", {}) | moments.environment,
            pass_fds=moments.of_program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        moments.measure(process.pid)
        output: dict[str, str] = {}
        readers = [
            threading.Thread(
                target=lambda name=name: output.update({name: getattr(process, name).read()}), daemon=True
            )
            for name in ("stdout", "stderr")
        ]
        for reader in readers:
            reader.start()
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - start > timeout_s:
                process.kill()
                os.wait4(process.pid, 0)
                process.returncode = -9
                raise BenchError(f"did not end in {timeout_s:.0f} s")
            if watch:
                watch(process.pid)
            time.sleep(0.005)
        wall_s = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        for reader in readers:
            reader.join()
    complain(allocator, process.returncode, output["stderr"])
    return output["stdout"], {
        "wall_ms": wall_s * 1000,
        "cpu_ms": (usage.ru_utime + usage.ru_stime) * 1000,
        "peak_rss_kib": usage.ru_maxrss,
        **moments.found,
    }


def complain(allocator: Allocator, returncode: int, stderr: str) -> None:
    """Raises BenchError when the program failed, or when the allocator could not be preloaded."""
    if returncode:
        how = f"killed by signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        raise BenchError(f"{how}: {last_words(stderr)}")
    for line in stderr.splitlines():
        if line.startswith("ERROR: ld.so"):
            raise BenchError(line)


def run_reporting(allocator: Allocator, command: list, timeout_s: float = 300, **options) -> Numbers:
    """Runs a program that ends by printing its own numbers as one JSON object (see workloads/report.h)."""
    text, cost = run(allocator, command, timeout_s, **options)
    try:
        numbers = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise BenchError(f"no JSON line in its output: {text[-200:]!r}") from error
    used = numbers.pop("allocator_file", None)
    if used is not None and os.path.realpath(used) != os.path.realpath(allocator.library):
        raise BenchError(f"ran on {used}, not on {allocator.library}")
    del cost["wall_ms"]
    return cost | numbers  # of its peak the program knows more
