"""From build to build (LLAMA Fig. 10, Table 2): a model is made from one build of a small server,
bound to others by names, and measured on runs of those as the heap would use it."""

import argparse
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compiled import BUILD
from bench.lifetime.learning import mayfly
from bench.outcome import ROOT, BenchError, Shown, at_least, figure, say, table
from bench.processes import ask
from train.tests import revision

NAME = "builds"
ABOUT = "a small server built otherwise: a revision, other compilers and options; seconds for each"
FOLDER = BUILD / "lifetime" / NAME
# The least accuracy of a model on another build, in percent of bytes.
WANTED = (
    ("bytes_percent", "right", 75),
    ("bytes_off_by_one_percent", "right within a class", 90),
)
# The model's build, and that of a revision, on which kinds of tokens are compared.
FIRST, REVISED = "same build", "revision"
ENCODERS = {"table": "table", "network": "lstm-frames"}
EVERY = "2k"
EVERY_OTHER = ("8k", "32k", "128k")


@dataclass
class Build:
    compiler: str
    options: list[str]
    changes: dict[str, str]


BUILDS = {
    FIRST: Build("g++", ["-O2"], {}),
    REVISED: Build("g++", ["-O2"], revision.CHANGES),
    "clang": Build("clang++", ["-O2"], {}),
    "-O3": Build("g++", ["-O3"], {}),
    "-O1": Build("g++", ["-O1"], {}),
    "-O0": Build("g++", ["-O0"], {}),
    "-O0 revision": Build("g++", ["-O0"], revision.CHANGES),
}


def measure(options: argparse.Namespace) -> dict:
    """Flat keys: `builds.BUILD.…`, `builds.every.…`, `builds.tokens.…`."""
    quick = options.quick
    seconds = 3 if quick else 10
    FOLDER.mkdir(parents=True, exist_ok=True)
    programs = {name: program for name in BUILDS if (program := built(name))}
    first = run(programs[FIRST], "made-from", seconds, EVERY)
    profiles = {name: run(program, "run", seconds, EVERY) for name, program in programs.items()}
    flat, runs = {}, {}
    for kind, encoder in ENCODERS.items():
        model = trained(first, FOLDER / f"{kind}.mayfly-model", encoder, quick)
        for name, profile in profiles.items():
            bound = FOLDER / f"{kind}-{key(name)}.mayfly-model"
            flat[f"{key(name)}.{kind}.contexts_known_percent"] = bound_to(model, programs[name], bound)
            runs[f"{key(name)}.{kind}"] = (bound, profile)
            runs[f"{key(name)}.{kind}.without_bind"] = (model, profile)
    for every in EVERY_OTHER:
        seldom = run(programs[FIRST], f"every-{every}", seconds, every)
        model = trained(seldom, FOLDER / f"every-{every}.mayfly-model", "table", quick)
        runs[f"every.{every}"] = (model, profiles[FIRST])
    tokens = ["--tokens", REVISED, "--rounds", "1" if quick else "12"]
    flat |= studied(first, {key(name): profile for name, profile in profiles.items()}, runs, tokens)
    return {f"builds.{name}": value for name, value in flat.items()}


def key(name: str) -> str:
    return name.replace(" ", "_").lstrip("-")


def built(name: str) -> Path | None:
    """The server of a build; `None` where its compiler is not installed."""
    build = BUILDS[name]
    if not shutil.which(build.compiler):
        say(f"builds: {build.compiler} is not installed: left out")
        return None
    folder = FOLDER / key(name)
    folder.mkdir(exist_ok=True)
    (folder / "server.cc").write_text(revision.changed(build.changes))
    command = [build.compiler, "-std=c++17", "-g", *build.options, "-o", "server", "server.cc"]
    ask(command, f"{name}: does not compile", cwd=folder)
    return folder / "server"


def run(program: Path, name: str, seconds: int, every: str) -> Path:
    return profiled(program, name, [seconds], every, seconds)


def profiled(program: Path, name: str, arguments: list, every: str, seconds: int) -> Path:
    """A profile of a program that runs for so many seconds."""
    output = program.with_name(name)
    command = ["profile", "--every", every, "-o", output, "--", program, *arguments]
    mayfly(*command, timeout_s=60 + 20 * seconds)
    return output.with_suffix(".parquet")


def trained(profile: Path, model: Path, encoder: str, quick: bool) -> Path:
    rounds = 2 if quick else 10
    mayfly("train", profile, "-o", model, "--encoder", encoder, "--rounds", rounds, timeout_s=1200)
    return model


def bound_to(model: Path, program: Path, bound: Path) -> float:
    """Binds a model to another build of its program; returns the share of its contexts known, by bytes."""
    output = json.loads(mayfly("bind", model, "-o", bound, "--json", "--", program, timeout_s=300))
    say(f"builds: {bound.name}: {output['bind.bytes_percent']}% of the contexts' bytes are known")
    return output["bind.bytes_percent"]


def studied(
    first: Path, profiles: dict[str, Path], runs: dict[str, tuple[Path, Path]], more: Sequence[str] = ()
) -> dict[str, float]:
    """The heap's accuracy with each model in a run, and Table 2, by training's own Python."""
    environment = ask([ROOT / "train" / "environment", "network"], "train/environment", None)
    command = [environment.strip(), "-m", "train.studies.build_to_build", first]
    command += [f"{name}={path}" for name, path in profiles.items()]
    for name, (model, profile) in runs.items():
        command += ["--heard", f"{name}={model}={profile}"]
    command += more
    done = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError("train.studies.build_to_build failed: see its lines above")
    return json.loads(done.stdout)


def shown(flat: dict) -> list[Shown]:
    """The goals of a revision."""
    return kept(f"{NAME}.{key(REVISED)}", "builds: a revision", flat)


def kept(of: str, label: str, flat: dict) -> list[Shown]:
    """The goals of a model on another build, whose keys begin with `of`."""
    return [
        at_least(f"{label}: bytes {right}, {kind}", least, flat[wanted], "%")
        for what, right, least in WANTED
        for kind in ENCODERS
        if (wanted := f"{of}.{kind}.{what}") in flat
    ]


def print_kept(study: str, keys: dict[str, str], flat: dict) -> None:
    """A table of builds by their labels."""
    rows = [["", "same stacks", "known", "table", "off by one", "network", "off by one", "without bind"]]
    for label, name in keys.items():
        keys_of_row = [f"matching.{name}.bytes_percent", f"{name}.table.contexts_known_percent"]
        for kind in ENCODERS:
            keys_of_row += [f"{name}.{kind}.bytes_percent", f"{name}.{kind}.bytes_off_by_one_percent"]
        keys_of_row.append(f"{name}.network.without_bind.bytes_percent")
        rows.append([label, *(figure(flat.get(f"{study}.{one}")) for one in keys_of_row)])
    table(rows)


def print_all(flat: dict) -> None:
    print(f"\nFrom build to build: {ABOUT}. Percent of bytes")
    print_kept(NAME, {name: key(name) for name in BUILDS}, flat)
    print("\n  Samples of the model's profile (table, another run of the same build)")
    rows = [["every", "bytes", "off by one", "known"]]
    for every in (EVERY, *EVERY_OTHER):
        of_rate = f"builds.{key(FIRST)}.table" if every == EVERY else f"builds.every.{every}"
        metrics = ("bytes_percent", "bytes_off_by_one_percent", "bytes_known_percent")
        rows.append([every, *(figure(flat.get(f"{of_rate}.{what}")) for what in metrics)])
    table(rows)
    print("\n  Kinds of tokens, measured on the revision (network, before rounding)")
    rows = [["", "bytes", "contexts"]]
    for name in dict.fromkeys(name.split(".")[2] for name in flat if name.startswith("builds.tokens.")):
        get = lambda what, name=name: figure(flat.get(f"builds.tokens.{name}.{what}_percent"))  # noqa: E731
        rows.append([name.replace("_", " "), get("bytes"), get("contexts")])
    table(rows)
