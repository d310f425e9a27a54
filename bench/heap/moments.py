"""The memory of a program that runs to its end, at the moments that it names: it writes a line to a pipe and
waits until its memory is measured. So bench/memory.py alone measures, for every program. The other side is in
workloads/report.h."""

import os
import threading

from bench import memory
from bench.heap.machine import translations

VARIABLE = "BENCH_MOMENTS"
Numbers = dict[str, float]


class Moments:
    """`found` has the numbers of all moments, by the program's names for them."""

    def __init__(self):
        self.found: Numbers = {}
        asked, self._asks = os.pipe()
        self._answered, answers = os.pipe()
        self._asked, self._answers = os.fdopen(asked), os.fdopen(answers, "wb", buffering=0)
        self._thread: threading.Thread | None = None

    @property
    def of_program(self) -> tuple[int, int]:
        """The descriptors that the program inherits."""
        return self._asks, self._answered

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: f"{self._asks},{self._answered}"}

    def measure(self, pid: int) -> None:
        """Answers this program, which has started."""
        self._close_programs()
        self._thread = threading.Thread(target=self._answer, args=(pid,), daemon=True)
        self._thread.start()

    def _answer(self, pid: int) -> None:
        for line in self._asked:
            now = memory.numbers(memory.of(pid))
            self.found |= {line.strip() + name: value for name, value in (now | translations(now)).items()}
            self._answers.write(b"\n")

    def _close_programs(self) -> None:
        for end in self.of_program:
            os.close(end)

    def close(self) -> None:
        """After the program's end."""
        if self._thread:
            self._thread.join()
        else:
            self._close_programs()
        self._asked.close()
        self._answers.close()
