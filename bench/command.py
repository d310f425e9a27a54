"""What the commands of all comparisons share: their options, facts of the machine, how they end."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bench.outcome import RESULTS, ROOT, BenchError


def parser(room: str, description: str, heading: str, parts: Mapping[str, str], epilog: str, quick: str):
    """`parts` are what --only chooses from, with a line about each. `quick` says what --quick does."""
    width = max(map(len, parts)) + 2
    lines = "\n".join(f"  {name:<{width}}{about}" for name, about in parts.items())
    made = argparse.ArgumentParser(
        prog=f"bench/{room}/run",
        description=description,
        epilog=f"{heading}s\n{lines}\n{epilog}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", metavar=f"{heading.upper()},...", help=f"these {heading}s and no others")
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, not as tables"
    )
    output = RESULTS / f"{room}.json"
    made.add_argument("--output", type=Path, default=output, metavar="FILE", help="where the JSON goes")
    return made


def choose(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace, option: str, known: Iterable[str]
) -> None:
    """Turns NAME,... into a list in the order of `known`; an option not given is an empty list."""
    known = list(known)
    given = [name for name in (getattr(parsed, option) or "").split(",") if name]
    for name in given:
        if name not in known:
            parser.error(f"--{option} {name}: there is no such; there are {', '.join(known)}")
    setattr(parsed, option, [name for name in known if name in given])


def machine(quick: bool) -> dict:
    kernel = platform.release().split("-")[0]
    return {"cpus": os.cpu_count(), "kernel": kernel, "commit": commit(), "quick": quick}


def commit() -> str:
    """What was measured, and whether it had been changed since."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or "unknown"


def told(options: argparse.Namespace, flat: dict, results, print_tables: Callable) -> int:
    """Prints what was measured as it was asked for; the exit status is 1 if some of it failed."""
    if options.json:
        print(json.dumps(flat))
    else:
        print_tables(results)
        print(f"\nWritten to {options.output}")
    return 1 if results.failures else 0


def outcome(measure: Callable[[], int]) -> int:
    """The exit status. What was measured before a failure or an interruption is kept by the caller."""
    # Unwinds: what was started is ended, settings that were changed are put back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return measure()
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted: what was measured until now is kept", file=sys.stderr)
        return 130
