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


def software_cycles(marks: dict) -> list[str]:
    """What an allocation, a free and a page fault take in software, for the mechanisms that are off."""

    def mean(cycles: str, events: str) -> int:
        return round(marks[cycles] / max(marks.get(events, 0), 1))

    return [
        f"memento.software_alloc_cycles={mean('cycles_by_owner.allocate', 'objects.allocations')}",
        f"memento.software_free_cycles={mean('cycles_by_owner.free', 'objects.frees')}",
        f"memento.software_page_fault_cycles={mean('cycles_by_owner.page_fault', 'page_faults')}",
    ]


def command(program: str, configuration: str, folder: Path, marks: Path | None) -> list[str]:
    wanted, its = RUNS["configurations"][configuration], RUNS["programs"][program]
    words = [str(MAYFLY), "sim", "--json", "--out", str(folder), "--allocator", wanted["allocator"]]
    if "MAYFLY_SIM_IMAGE" in os.environ:
        words += ["--image", os.environ["MAYFLY_SIM_IMAGE"]]
    if wanted.get("only") == "warm" or its.get("steady"):
        words.append("--warm")
    if "machine" in wanted:
        words += ["--machine", wanted["machine"]]
    if "off" in wanted:
        words += ["--set", f"memento.{wanted['off']}=false"]
        known = json.loads(marks.read_text()) if marks else {}
        if "objects.allocations" in known:
            for key in software_cycles(known):
                words += ["--set", key]
        elif wanted["off"] != "bypass":
            raise ValueError("what it takes in software is not known: this program has no marks")
    return [*words, "--", program, *its.get("arguments", [])]


def main() -> None:
    program, configuration, output = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    marks = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    folder = output.with_suffix("")
    try:
        done = subprocess.run(
            command(program, configuration, folder, marks), capture_output=True, text=True, timeout=1800
        )
        if done.returncode != 0:
            raise ValueError((done.stderr.strip() or "no message").splitlines()[-1])
        found = json.loads(done.stdout)
        found["output"] = (folder / "output").read_text(errors="replace").strip()
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        found = {"failure": str(error)}
        print(f"sim/figures: {program}, {configuration}: {error}", file=sys.stderr)
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
