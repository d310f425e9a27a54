"""One run of the graph: `mayfly sim` with a program of runs.toml in one of its configurations.

A run that fails does not stop the others: it leaves its one line of complaint, which the tables show.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNS = tomllib.loads((HERE / "runs.toml").read_text())
MAYFLY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/mayfly"


def region(wanted: dict, its: dict) -> str:
    """What counts: a store's steady state, else a function's first call where it says which that is."""
    if its.get("steady"):
        return "warm"
    return wanted.get("region", "first" if its.get("warm") else "process")


def command(program: str, configuration: str, folder: Path) -> list[str]:
    wanted, its = RUNS["configurations"][configuration], RUNS["programs"][program]
    words = [str(MAYFLY), "sim", "--json", "--out", str(folder), "--allocator", wanted["allocator"]]
    if "MAYFLY_SIM_IMAGE" in os.environ:
        words += ["--image", os.environ["MAYFLY_SIM_IMAGE"]]
    words += ["--region", region(wanted, its)]
    if "machine" in wanted:
        words += ["--machine", wanted["machine"]]
    if "off" in wanted:
        words += ["--set", f"memento.{wanted['off']}=false"]
    return [*words, "--", program, *its.get("arguments", [])]


def commit() -> str:
    """Of the model, and whether the tree has changes that no commit has."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    program, configuration, output = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    folder = output.with_suffix("")
    try:
        done = subprocess.run(
            command(program, configuration, folder), capture_output=True, text=True, timeout=1800
        )
        if done.returncode != 0:
            raise ValueError((done.stderr.strip() or "no message").splitlines()[-1])
        found = json.loads(done.stdout)
        found["made_with.commit"] = commit()
        found["output"] = (folder / "output").read_text(errors="replace").strip()
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        found = {"failure": str(error)}
        print(f"sim/figures: {program}, {configuration}: {error}", file=sys.stderr)
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
