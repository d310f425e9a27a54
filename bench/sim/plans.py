"""What a plan runs, and how long that takes by the times of earlier runs: python3 -m bench.sim.plans core

Says it on stderr, and prints the results' files, which `bench/sim/run` has Snakemake make. A run that is
there already is left out, unless it failed, or was made with other sources or another image than one of now.
"""

import argparse
import json
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bench.outcome import ROOT
from bench.sim.paper import FUNCTIONS
from bench.sim.runs import RUNS, configurations, wanted
from bench.sim.simulate import LISTED, after_path, changes, is_unchanged_since

FOLDER = ROOT / "target/sim-figures"
RAW = ROOT / "bench/results/sim"
# Until a run's region begins: QEMU's start, and a function's imports without timing. And what a run that no
# earlier one resembles takes.
START_S, UNKNOWN_S = 10, 120
SIDES = ("native", "memento")


def programs() -> list[str]:
    """Those that are in a mean."""
    return [name for name, one in RUNS["programs"].items() if one["group"] in (*FUNCTIONS, "Data Proc")]


def runs_of(plan: str | None, figures: list[str]) -> list[tuple[str, str]]:
    """The runs of a plan, of a plan's figures, or of figures with today's inputs."""
    needed = [one for figure in figures for one in RUNS["figures"][figure]] or list(SIDES)
    needed = list(dict.fromkeys(needed))
    found = []
    for program in programs():
        fit = [one for one in needed if one in configurations(program)]
        if plan is None:
            found += [(program, one) for one in fit]
            continue
        inputs, regions = RUNS["plans"][plan]["inputs"], RUNS["plans"][plan]["regions"]
        # A store's steady state is one region; the whole process has its imports in it.
        regions = ["process"] if RUNS["programs"][program].get("steady") else regions
        for region in regions:
            prefix = inputs if region == "process" else f"{inputs}-{region}"
            found += [(program, f"{prefix}-{one}") for one in fit if not one.startswith("import-")]
    return found


def size(arguments: list[str]) -> int:
    """The largest number of an input: what its run's length grows with."""
    text = "".join(one if one.isdigit() else " " for one in " ".join(arguments))
    return max(map(int, text.split()), default=1)


class Times:
    """Of earlier runs: those that are here, else those whose raw statistics the repository has."""

    def __init__(self, folder: Path = FOLDER, raw: Path = RAW) -> None:
        self.folder, self.raw = folder, raw
        self.kept: dict[str, dict] = {}

    def recorded(self, program: str, configuration: str) -> dict:
        file = self.folder / program / f"{configuration}.json"
        if file.exists() and "failure" not in (found := json.loads(file.read_text())):
            return found
        if program not in self.kept:
            kept = self.raw / f"{program}.json.xz"
            self.kept[program] = json.loads(lzma.decompress(kept.read_bytes())) if kept.exists() else {}
        return self.kept[program].get(configuration, {})

    def seconds(self, program: str, configuration: str) -> float:
        """Of a run; of one that was never made, by a smaller input's, and by the other side's."""
        found = self.recorded(program, configuration)
        if "run_s" in found:
            return found["run_s"]
        settings = wanted(configuration)
        if "inputs" not in settings:
            like = found or self.recorded(program, settings["allocator"]) or self.recorded(program, "native")
            return like["wall_s"] + START_S if "wall_s" in like else UNKNOWN_S
        listed = LISTED["programs"][program]["command"]
        its = RUNS["programs"][program].get("arguments", listed[after_path(listed) :])
        larger = RUNS["inputs"][settings["inputs"]].get(program, its)
        smaller = self.recorded(program, settings["allocator"])
        if "wall_s" not in smaller:
            return UNKNOWN_S
        imports = self.recorded(program, f"import-{settings['allocator']}").get("wall_s", 0)
        more = size(larger) / size(its)
        return START_S + smaller["wall_s"] * more + (imports if settings["region"] == "process" else 0)


def is_current(run: dict, is_same: Callable[[str], bool], image: str | None) -> bool:
    """Whether a run need not be repeated. `is_same`: the sources at a commit are those of now."""
    alike = image is None or run.get("made_with.image") == image
    return "failure" not in run and alike and is_same(run.get("made_with.commit", "unknown"))


def image_name() -> str | None:
    """What runs of now say of their image."""
    described = Path(os.environ.get("MAYFLY_SIM_IMAGE", "/none"), "image.json")
    return json.loads(described.read_text())["made_with"]["image"] if described.exists() else None


def split(runs: list[tuple[str, str]], is_same: Callable, image: str | None, folder: Path = FOLDER):
    """The runs that are to be made, and those that are there."""
    missing, there = [], []
    for program, configuration in runs:
        file = folder / program / f"{configuration}.json"
        done = file.exists() and is_current(json.loads(file.read_text()), is_same, image)
        (there if done else missing).append((program, configuration))
    return missing, there


def said(runs: list[tuple[str, str]], there: int, cores: int, times: Times) -> list[str]:
    """The runs, the longest first, and how long all take."""
    each = sorted(((times.seconds(*one), *one) for one in runs), reverse=True)
    lines = [f"{seconds:7.0f} s  {program}, {one}" for seconds, program, one in each]
    longest = each[0][0] if each else 0
    hours = max(longest, sum(seconds for seconds, *_ in each) / cores) / 3600
    lines.append(f"{len(runs)} runs, {there} more are there: about {hours:.1f} hours with {cores} at a time")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", nargs="?", choices=list(RUNS["plans"]))
    parser.add_argument("--figure", action="append", default=[], choices=list(RUNS["figures"]))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="also where sources have changes")
    parser.add_argument("--check", action="store_true", help="only whether sources have changes")
    options = parser.parse_args()
    if changed := changes():
        line = f"bench/sim: {changed[0]} has changes that no commit has, so no result could name its sources"
        print(line, file=sys.stderr)
        if not options.show:
            return 1
    if options.check:
        return 0
    missing, there = split(runs_of(options.plan, options.figure), is_unchanged_since, image_name())
    for line in said(missing, len(there), options.cores, Times()):
        print(line, file=sys.stderr)
    for program, configuration in [] if options.show else missing:
        file = FOLDER / program / f"{configuration}.json"
        file.unlink(missing_ok=True)
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
