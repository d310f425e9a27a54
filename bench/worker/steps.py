"""Where the time of a start goes: the steps that the worker's events tell, with an empty sandbox ready and
without."""

import contextlib
import time
from statistics import median

from bench.outcome import BenchError, figure, percentile, table
from bench.worker.times import NOOP
from bench.worker.worker import Worker, running

WAYS = {"ready": [], "made": ["--without", "ready"]}
# The worker's step for one that was ready.
TAKEN = "ready sandbox"
Numbers = dict[str, float]


def steps(function: str, rounds: int) -> Numbers:
    """New instances in turn, each after the one before has ended, restored if the function has a snapshot: ms
    until it asks for work, until its answer, and medians of each step."""
    template = {"template": NOOP / "template.yaml"} if function in ("shell", "noop") else {}
    found: dict[str, list[dict]] = {way: [] for way in WAYS}
    answers: dict[str, list[float]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as stack:
        workers = {
            way: stack.enter_context(running(*arguments, "--keep-alive", "1", **template))
            for way, arguments in WAYS.items()
        }
        for worker in workers.values():
            worker.invoke(function, 0)
        if function != "shell":
            for worker in workers.values():
                worker.wait_for_snapshots((function,))
        for number in range(rounds):
            for way, worker in workers.items():
                worker.wait_until_empty()
                time.sleep(0.5)  # until another sandbox is ready
                answers[way].append(worker.invoke(function, number))
                found[way].append(last_start(worker, function))
    if not any(TAKEN in dict(event["steps"]) for event in found["ready"]):
        raise BenchError(f"{function}: no start found a sandbox ready")
    numbers = {}
    for way, events in found.items():
        took = [event["ms"] for event in events]
        numbers |= {
            f"{way}.start_ms": median(took),
            f"{way}.least_ms": min(took),
            f"{way}.p75_ms": percentile(took, 75),
            f"{way}.answer_ms": median(answers[way]),
            f"{way}.restored": sum(event["kind"] == "restored" for event in events),
        }
        of_start = [dict(event["steps"]) for event in events]
        for name in of_start[-1]:
            values = [one[name] for one in of_start if name in one]
            numbers[f"{way}.step.{name.replace(' ', '_')}_ms"] = median(values)
    return numbers


def last_start(worker: Worker, function: str) -> dict:
    """The event of the function's last start."""
    events = worker.read("/events")["events"]
    return [one for one in events if one["kind"] in ("ready", "restored") and one["function"] == function][-1]


def print_steps(flat: dict, functions: tuple[str, ...]) -> None:
    """A table of each function: its steps with a sandbox ready and without."""
    for function in functions:
        prefix = f"steps.{function}."
        if f"{prefix}ready.start_ms" not in flat:
            continue
        restored = [flat[f"{prefix}{way}.restored"] for way in WAYS]
        print(f"\n{function}: medians of the steps of a start, ms ({restored[0]} and {restored[1]} restored)")
        names = [key.split(".step.")[1] for key in flat if key.startswith(prefix) and ".step." in key]
        rows = [["", "a sandbox ready", "none ready"]]
        for name in dict.fromkeys(names):
            values = [flat.get(f"{prefix}{way}.step.{name}") for way in WAYS]
            rows.append([name.removesuffix("_ms").replace("_", " "), *(figure(value, 2) for value in values)])
        for key, title in (("start_ms", "until it asks for work"), ("least_ms", "the same, least"),
                           ("p75_ms", "the same, P75"), ("answer_ms", "until its answer")):  # fmt: skip
            rows.append([title, *(figure(flat[f"{prefix}{way}.{key}"], 2) for way in WAYS)])
        table(rows)
