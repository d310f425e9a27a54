"""The studies of the image server (LLAMA §9.2 and §9.3): models of other sampling rates, the lifetimes of a
profile beside those of a whole trace (Fig. 11a), the cost of sampling for a request, and models of one build
on runs of others (Fig. 10)."""

import argparse
import json
import shutil
from pathlib import Path
from statistics import median

from bench.compiled import BUILD
from bench.lifetime import build, builds, variants, workloads
from bench.lifetime.learning import mayfly
from bench.lifetime.workloads import QUICK, Size
from bench.outcome import ROOT, Shown, at_least, figure, say, table
from bench.processes import ask

NAME = "image_study"
ABOUT = "the image server sampled at other rates, and built otherwise; half an hour"
FOLDER = BUILD / "lifetime" / NAME
SIZE, TRACED = Size(0.25, 0.5), Size(0.05, 0.5)
# Models are measured by the contexts of another run, sampled as often as its memory of samples allows.
DENSEST, DEFAULT = "4k", "512k"
RATES = ("16k", "64k", DEFAULT, "4m", "32m")
# A model is right for so many percent even if one allocation of a million is sampled, and off by one at most
# for nearly all others (§9.3).
LEAST, LEAST_OFF_BY_ONE = 80, 95
CLASSES = ("10ms", "100ms", "1s", "10s", "100s", "1000s", "inf")
# A function is renamed, one has another argument, one is new, a class has another member.
REVISION = {
    "std::string thumbnail(const Message &request, Trace &trace) {": "std::string reduced(const Message"
    " &request, Trace &trace) {",
    '{"thumbnail", thumbnail}': '{"thumbnail", reduced}',
    "std::string encoded(const VImage &image, Trace &trace) {": "std::string encoded(const VImage &image,"
    " Trace &trace, int = 85) {",
    "    uint64_t version = 0;\n": "    uint64_t version = 0, refreshed = 0;\n",
    "// Never destroyed:": "size_t twice(size_t bytes) { return bytes * 2; }\n\n// Never destroyed:",
}
FIRST, REVISED = "same_build", "revision"
# Compiler, options and changes of each build; the last of several -O decides.
BUILDS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    FIRST: ("g++", [], {}),
    REVISED: ("g++", [], REVISION),
    "clang": ("clang++", ["-Wno-error"], {}),
    "O3": ("g++", ["-O3", "-Wno-error"], {}),
    "O0": ("g++", ["-O0"], {}),
}


def measure(options: argparse.Namespace) -> dict:
    """Flat keys: `image_study.every_RATE.…`, `.classes.…`, `.requests.…`, `.BUILD.…`, `.matching.BUILD.…`."""
    size = QUICK if options.quick else SIZE
    FOLDER.mkdir(parents=True, exist_ok=True)
    programs = {
        name: build.image_server_of(FOLDER / name, *how)
        for name, how in BUILDS.items()
        if shutil.which(how[0])
    }
    flat = rates(programs[FIRST], size, options.quick)
    flat |= classes(programs[FIRST], QUICK if options.quick else TRACED)
    flat |= requests(programs[FIRST], size, options.rounds)
    flat |= other_builds(programs, size, options.quick)
    return {f"{NAME}.{name}": value for name, value in flat.items()}


def profiled(program: Path, name: str, size: Size, seed: int, every: str) -> Path:
    """The table of contexts of a run."""
    output = FOLDER / name
    workloads.image(variants.profiled(output, every), size, seed, program)
    return output.with_suffix(".parquet")


def rates(program: Path, size: Size, quick: bool) -> dict:
    """The accuracy of a model of each rate on the contexts of another, densely sampled run."""
    flat: dict = {}
    reference = profiled(program, "reference", size, 2, DENSEST)
    for every in RATES:
        profile = profiled(program, f"every-{every}", size, 1, every)
        model = builds.trained(profile, FOLDER / f"every-{every}.mayfly-model", "lstm-frames", quick)
        measured = json.loads(mayfly("train", reference, "--measure", model, "--json", timeout_s=1200))
        for what in ("bytes", "bytes_off_by_one", "unweighted"):
            flat[f"every_{every}.{what}_percent"] = measured[f"measure.all.{what}_percent"]
        say(f"{NAME}: sampled every {every}: right for {flat[f'every_{every}.bytes_percent']}% of bytes")
    return flat


def classes(program: Path, size: Size) -> dict:
    """Percent of the objects by lifetime class: of a whole trace, and by a profile of the default rate."""
    trace = FOLDER / "trace"
    try:
        workloads.image(variants.traced(trace), size, 1, program)
        text = mayfly("replay", trace, "--allocator", "recorded", "--json", timeout_s=3600)
    finally:
        trace.unlink(missing_ok=True)
    replayed = json.loads(text)
    counts = [replayed[f"lifetimes.{name}.objects"] for name in CLASSES]
    flat = {
        f"classes.trace.{name}_percent": 100 * n / sum(counts)
        for name, n in zip(CLASSES, counts, strict=True)
    }
    profile = profiled(program, "classes", size, 1, DEFAULT)
    python = ask([ROOT / "train" / "environment"], "train/environment", None).strip()
    command = ["env", f"PYTHONPATH={ROOT}", python, "-m", "train.studies.lifetime_classes", profile]
    shares = json.loads(ask(command, "train.studies.lifetime_classes", None))
    return flat | {f"classes.profile.{name}_percent": shares[name] for name in CLASSES}


def requests(program: Path, size: Size, rounds: int) -> dict:
    """The times of requests, sampled at the default rate from the start and not sampled, in turn."""
    ways = {"unsampled": variants.online(), "sampled": variants.profiled(FOLDER / "requests", DEFAULT)}
    runs: dict[str, list[dict]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, variant in ways.items():
            runs[way].append(workloads.image(variant, size, 1, program).speed)
    flat = {}
    for what in ("p50_ms", "p99_ms", "requests_per_s"):
        for way, speeds in runs.items():
            flat[f"requests.{way}.{what}"] = median(speed[what] for speed in speeds)
        ratios = [a[what] / b[what] for a, b in zip(runs["sampled"], runs["unsampled"], strict=True)]
        flat[f"requests.ratio.{what}"] = median(ratios)
    return flat


def other_builds(programs: dict[str, Path], size: Size, quick: bool) -> dict:
    """The accuracy of a model of one build, bound to the others, in runs of those."""
    flat, runs = {}, {}
    profiles = {name: profiled(program, f"of-{name}", size, 2, "16k") for name, program in programs.items()}
    first = FOLDER / "every-16k.parquet"
    model = builds.trained(first, FOLDER / "builds.mayfly-model", "lstm-frames", quick)
    for name, profile in profiles.items():
        bound = FOLDER / f"{name}.mayfly-model"
        flat[f"{name}.contexts_known_percent"] = builds.bound_to(model, programs[name], bound)
        runs[name] = (bound, profile)
    return flat | builds.studied(first, profiles, runs)


def shown(flat: dict) -> list[Shown]:
    """The paper's accuracy of few samples, at the rate that samples one of a million objects or fewer, and
    that of a revision."""
    found = []
    for part, label in ((f"every_{RATES[-1]}", f"sampled every {RATES[-1]}"), (REVISED, "a revision")):
        for what, kind, least in (
            ("bytes_percent", "right", LEAST),
            ("bytes_off_by_one_percent", "right within a class", LEAST_OFF_BY_ONE),
        ):
            value = flat.get(f"{NAME}.{part}.{what}")
            if value is not None:
                found.append(at_least(f"image server: {label}, bytes {kind}", least, value, "%"))
    return found


def print_all(flat: dict) -> None:
    of = lambda key, digits=1: figure(flat.get(f"{NAME}.{key}"), digits)  # noqa: E731
    print("\nThe image server: models of other sampling rates on another run, percent (§9.3)\n")
    rows = [["a sample every", "bytes right", "within a class", "contexts"]]
    for every in RATES:
        part = f"every_{every}"
        shares = ("bytes_percent", "bytes_off_by_one_percent", "unweighted_percent")
        rows.append([every, *(of(f"{part}.{what}") for what in shares)])
    table(rows)
    print("\n  Objects of each lifetime class, percent (Fig. 11a)")
    rows = [["", *CLASSES]]
    for way in ("trace", "profile"):
        rows.append([way, *(of(f"classes.{way}.{name}_percent", 4) for name in CLASSES)])
    table(rows)
    print("\n  Requests, sampled and not (the paper: about 5% more, 1 to 8)")
    rows = [["", "p50 ms", "p99 ms", "requests/s"]]
    for way in ("unsampled", "sampled", "ratio"):
        rows.append(
            [way, *(of(f"requests.{way}.{what}", 3) for what in ("p50_ms", "p99_ms", "requests_per_s"))]
        )
    table(rows)
    print("\n  A model of one build on others (Fig. 10, Table 2), percent of bytes")
    rows = [["", "same stacks", "known by name", "right", "within a class"]]
    for name in BUILDS:
        keys = [f"matching.{name}.bytes_percent", f"{name}.contexts_known_percent"]
        rows.append([name, *map(of, [*keys, f"{name}.bytes_percent", f"{name}.bytes_off_by_one_percent"])])
    table(rows)
