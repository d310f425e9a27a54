"""One run of the graph: `mayfly sim` with a program of runs.toml in one of its configurations.

A run that fails does not stop the others: it leaves its error of one line, which the tables show.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from functools import cache
from pathlib import Path

from bench.outcome import ROOT
from bench.sim.runs import RUNS, wanted

LISTED = tomllib.loads((ROOT / "sim/programs/programs.toml").read_text())
LONGEST_S = 7200
MAYFLY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/mayfly"


def region(settings: dict, its: dict) -> str:
    """The measured region: a store's steady state, else a function's first call where it marks that."""
    if its.get("steady"):
        return "warm"
    return settings.get("region", "first" if its.get("warm") else "process")


def with_arguments(listed: list[str], arguments: list[str]) -> list[str]:
    """As `mayfly sim` has it: they replace the words after the last absolute path."""
    return [*listed[: after_path(listed)], *arguments] if arguments else listed


def after_path(listed: list[str]) -> int:
    """Where a listed command's arguments begin."""
    return 1 + max(at for at, word in enumerate(listed) if word.startswith("/"))


def together(number: int, allocator: str) -> list[str]:
    """Four functions, the same for each number, as sim/programs/c/together.c takes them."""
    inputs = RUNS["together"]["programs"]
    words = []
    for name in random.Random(number).sample(sorted(inputs), 4):
        its = LISTED["programs"][name]
        variables = LISTED["environment"][its["language"]][allocator]
        listed = its.get(f"{allocator}_command", its["command"])
        words += [",", *(f"{key}={value}" for key, value in variables.items())]
        words += with_arguments(listed, inputs[name])
    return ["/programs/bin/together", *words[1:]]


def command(program: str, configuration: str) -> list[str]:
    """The arguments of `mayfly sim`."""
    settings, its = wanted(configuration), RUNS["programs"].get(program, {})
    name, arguments = its.get("program", program), its.get("arguments", [])
    inputs = settings.get("inputs")
    if inputs:
        arguments = RUNS["inputs"][inputs].get(program, arguments)
    words = ["--allocator", settings["allocator"], "--memory", "1536MiB"]
    if "MAYFLY_SIM_IMAGE" in os.environ:
        words += ["--image", os.environ["MAYFLY_SIM_IMAGE"]]
    if "machine" in settings:
        words += ["--machine", settings["machine"]]
    words += [word for key in settings.get("set", []) for word in ("--set", key)]
    environment = list(settings.get("env", []))
    if inputs and region(settings, its) == "process":
        environment.append("MAYFLY_REGION=process")  # one call, and not a warm one as well
    if program.startswith("together-"):
        last = together(int(program.removeprefix("together-")), settings["allocator"])
    elif "python" in settings or "build" in settings:
        # Another CPython of sim/shim/cpython, or build of a Go program: the program itself marks the region.
        language = "cpython" if "python" in settings else "go"
        everywhere = LISTED["environment"]["all"]["native"] | LISTED["environment"][language]["native"]
        environment += [f"{key}={value}" for key, value in everywhere.items()]
        environment.append(f"MAYFLY_REGION={region(settings, its)}")
        path, *rest = with_arguments(LISTED["programs"][name]["command"], arguments)
        last = [
            f"/programs/bin/{settings['python']}" if "python" in settings else f"{path}-{settings['build']}",
            *rest,
        ]
    else:
        words += ["--region", region(settings, its)]
        last = [name, *arguments]
    words += [word for variable in environment for word in ("--env", variable)]
    return [*words, *settings.get("words", []), "--", *last]


def commit() -> str:
    """Of the model, and whether the tree has changes that no commit has, in files that git knows or not."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True
    )
    return (done.stdout.strip() or "unknown") + ("-dirty" if changes() else "")


# What a run depends on.
SOURCES = [
    "sim",
    "bench/sim/runs.toml",
    "bench/sim/simulate.py",
    "bench/sim/runs.py",
    "cli/src/sim",
    "functions",
]
SOURCES += ["vm/image", "Cargo.lock"]


def changes() -> list[str]:
    """The files of the sources that differ from the commit."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "--", *SOURCES], cwd=ROOT, capture_output=True, text=True
    )
    return [line[3:] for line in done.stdout.splitlines()]


@cache
def is_unchanged_since(commit: str) -> bool:
    """Whether the sources at that commit are those of now."""
    command = ["git", "diff", "--quiet", commit, "--", *SOURCES, ":!sim/tests", ":!sim/rtl"]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def run(words: list[str], folder: Path | None = None, where: Path | None = None) -> dict:
    """The statistics of `mayfly sim`, which it also keeps in a folder, and the program's output. `where`: the
    folder of a program that is in no image."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch)
        # The graph has a run on each processor.
        command = [str(MAYFLY), "sim", "--json", "--threads", "1", "--out", str(folder), *words]
        started = time.monotonic()
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=LONGEST_S)
        if done.returncode != 0:
            raise SystemExit((done.stderr.strip() or "no message").splitlines()[-1])
        output = (folder / "output").read_text(errors="replace").strip()
        return json.loads(done.stdout) | {"output": output, "run_s": round(time.monotonic() - started, 1)}


def main() -> None:
    program, configuration, output = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    try:
        found = run(command(program, configuration), output.with_suffix(""))
        found["made_with.commit"] = commit()
    except (SystemExit, ValueError, OSError, subprocess.TimeoutExpired) as error:
        found = {"failure": str(error)}
        print(f"bench/sim: {program}, {configuration}: {error}", file=sys.stderr)
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
