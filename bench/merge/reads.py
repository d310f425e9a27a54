"""The cost of reading merged memory: a merged table beside an unmerged one, in turn. Both begin on huge
pages; the huge pages that remain explain most of the difference."""

from statistics import median

from bench.merge import store
from bench.merge.build import reads_program
from bench.merge.json_process import JsonProcess, fleet
from bench.merge.machine import LIBRARY
from bench.outcome import BenchError

WAYS = {"rows": "r", "random": "f", "gemv": "g"}


def compare(mib: int, rounds: int) -> dict[str, float]:
    """Milliseconds of each way to read, and its ratio on merged memory: the median of the rounds, the
    smallest and the largest."""
    numbers: dict[str, float] = {"mib": mib, "rounds": rounds}
    with store.running() as shared, fleet() as started:
        programs = {}
        for name in ("plain", "first", "merged"):
            words = [reads_program(), str(mib), *([] if name == "plain" else [LIBRARY])]
            programs[name] = JsonProcess(f"reads {name}", words, shared.environment())
            started.append(programs[name])
            numbers[f"{name}.huge_before_mib"] = programs[name].answer()["huge_mib"]
        for name in ("first", "merged"):
            numbers[f"{name}.advise_s"] = programs[name].ask("a")["wall_s"]
        for name, program in programs.items():
            numbers[f"{name}.huge_mib"] = program.ask("h")["huge_mib"]
        for way, step in WAYS.items():
            took: dict[str, list[float]] = {name: [] for name in programs}
            for _ in range(rounds + 1):
                answers = {name: program.ask(step) for name, program in programs.items()}
                if len({answer["sum"] for answer in answers.values()}) != 1:
                    raise BenchError(f"reads: {way}: a merged table gives another sum")
                for name, answer in answers.items():
                    took[name].append(1000 * answer["wall_s"])
            for name, times in took.items():
                numbers[f"{way}.{name}_ms"] = median(times[1:])
                if name != "plain":
                    ratios = [ours / plain for ours, plain in zip(times[1:], took["plain"][1:], strict=True)]
                    numbers[f"{way}.{name}_ratio"] = median(ratios)
                    numbers[f"{way}.{name}_ratio_min"], numbers[f"{way}.{name}_ratio_max"] = (
                        min(ratios),
                        max(ratios),
                    )
        programs["merged"].ask("v")
    return numbers
