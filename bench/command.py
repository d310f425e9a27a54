"""Parts that the commands of all comparisons share: options, facts of the machine, exit status."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from bench.outcome import RESULTS, ROOT, BenchError, Shown, print_shown, read, say, write


def parser(
    command: str,
    description: str,
    heading: str,
    parts: Mapping[str, str],
    epilog: str,
    quick: str | None,
    output: str,
    rounds: int | None = None,
):
    """`parts` are the choices of --only, with a line about each. `quick` is the help of --quick, if there is
    one; `rounds` the default number, 0 if that differs."""
    width = max(map(len, parts)) + 2
    lines = "\n".join(f"  {name:<{width}}{about}" for name, about in parts.items())
    made = argparse.ArgumentParser(
        prog=f"bench/{command}",
        description=description,
        epilog=f"{heading}s\n{lines}\n{epilog}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", metavar=f"{heading.upper()},...", help=f"these {heading}s and no others")
    if quick:
        made.add_argument("--quick", action="store_true", help=quick)
    if rounds is not None:
        default = f"rounds, in turn (default: {rounds or '3; 1 with --quick'})"
        made.add_argument("--rounds", type=one_or_more, default=rounds or None, metavar="N", help=default)
    made.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, not as tables"
    )
    made.add_argument(
        "--output", type=Path, default=RESULTS / output, metavar="FILE", help="the file for the JSON"
    )
    return made


def one_or_more(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 or more")
    return int(text)


def choose(
    parser: argparse.ArgumentParser,
    parsed: argparse.Namespace,
    option: str,
    known: Iterable[str],
    all_of=False,
) -> None:
    """Turns NAME,... into a list in the order of `known`; without the option it is empty, or all of
    `known`."""
    known = list(known)
    given = [name for name in (getattr(parsed, option) or "").split(",") if name]
    for name in given:
        if name not in known:
            parser.error(f"--{option} {name}: there is no such; there are {', '.join(known)}")
    setattr(parsed, option, [name for name in known if name in given or (all_of and not given)])


def machine(quick: bool, **more) -> dict:
    facts = {
        "cpus": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "commit": commit(),
        "date": date.today().isoformat(),
        "load": round(os.getloadavg()[2], 1),  # of a quarter of an hour, the run itself included
    }
    return {f"machine.{key}": value for key, value in (facts | {"quick": quick} | more).items()}


def commit() -> str:
    """The commit that was measured, and whether files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


@contextmanager
def attempt(label: str, failures: dict, key: tuple[str, str], errors=BenchError):
    """Logs the result of one measurement, in the words that the block appends to the list, and its duration.
    A failure is recorded, and the others go on."""
    result, start = [], time.monotonic()
    try:
        yield result
    except errors as error:
        failures[key] = f"{error}" or type(error).__name__
        result = [f"FAILED: {failures[key]}"]
    say(f"{label}: {' '.join(result) or 'done'} (took {time.monotonic() - start:.1f} s)")


def report(
    options: argparse.Namespace,
    flat: dict,
    print_tables: Callable[[], None],
    shown: Iterable[Shown] = (),
    failures: Mapping[tuple[str, str], str] | None = None,
) -> int:
    """Prints the results as the options say; returns the exit status, 1 if a measurement failed."""
    if options.json:
        print(json.dumps(flat))
    else:
        print_tables()
        print_shown(shown)
        for (name, of), why in (failures or {}).items():
            print(f"\n  FAILED: {name} on {of}: {why}")
        print(f"\nWritten to {options.output}")
    return 1 if failures else 0


def outcome(measure: Callable[[], int]) -> int:
    """Returns the exit status. The caller keeps the results from before a failure or an interruption."""
    # Unwinds: started programs are ended, changed settings are restored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return measure()
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted: the results so far are kept", file=sys.stderr)
        return 130


class Run:
    """The options and the results: flat dotted keys with units. A part is a method of its name."""

    def __init__(self, options: argparse.Namespace, shown: Callable[[dict], list[Shown]]):
        self.options, self.shown = options, shown
        self.flat: dict = {}

    def keep(self, prefix: str, numbers: dict) -> None:
        for key, value in numbers.items():
            self.flat[f"{prefix}.{key}"] = round(value, 3) if isinstance(value, float) else value

    def measure(self, prefix: str, measurement: Callable[..., dict], *arguments) -> None:
        begun = time.monotonic()
        self.keep(prefix, measurement(*arguments))
        self.save()
        say(f"{prefix} (took {time.monotonic() - begun:.0f} s)")

    def save(self) -> dict:
        """Writes the results so far and their goals: an interrupted run leaves them."""
        self.flat |= machine(self.options.quick)
        return write(self.options.output, self.flat, self.shown(self.flat))

    def all(self) -> int:
        if self.options.keep and self.options.output.exists():
            self.flat |= read(self.options.output)
        for part in self.options.only:
            getattr(self, part)()
        return 0

    def main(self, print_tables: Callable[[dict], None]) -> int:
        status = outcome(self.all)
        if self.flat:
            flat = self.save()
            report(self.options, flat, lambda: print_tables(flat), self.shown(flat))
        return status
