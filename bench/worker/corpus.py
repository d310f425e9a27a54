"""Public templates: what the worker reads of them (`mayfly up --check`) beside what `sam local` reads, and
what it would serve. Takes a folder of checkouts, each a folder OWNER+NAME with its commit in `.commit`; those
of cookiecutter must be rendered (corpus_render.py). No template is run or kept: results are counts, by cause.

    bench/worker/corpus FOLDER                  # once worker/tests/run has made its environment
    bench/worker/corpus FOLDER --differences    # also each difference and each failed function, as a line
    bench/worker/corpus FOLDER --build          # also what is served after `sam build` where code must be
                                                # built: runs the build scripts of the checkouts

`sam build` takes this host's compilers: JAVA_HOME names a JDK, cargo-lambda and esbuild are on the PATH. What
came of each build is kept in `--built`, and the next run goes on with those that were not tried.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bench import command
from bench.outcome import ROOT, BenchError, Shown, at_least, at_most, say, table, write
from bench.worker import corpus_build, corpus_compare
from bench.worker.worker import MAYFLY

HERE = Path(__file__).parent
SAM = ROOT / "worker" / "tests" / "build" / "venv" / "bin" / "python"
WAYS = {
    "": "on this host as it is",
    "nearest.": "with --nearest-runtime",
    "built.": "with --nearest-runtime, after `sam build`",
}
KINDS = (".yaml", ".yml", ".json", ".template")
PASSED_OVER = {"node_modules", ".git", ".aws-sam"}
FUNCTION = re.compile(r"AWS::(Serverless|Lambda)::Function\b")
PLACEHOLDER = re.compile(r"\{\{ ?cookiecutter")
SECONDS = 120

NOT_BUILT = "not built"

# Why a function is not served: Lambda's reason code, words of the worker's line, and the cause in the table.
CAUSES = [
    ("InvalidRuntime", r"Runtime dotnet", "runtime .NET"),
    ("InvalidRuntime", r"Runtime java", "runtime Java"),
    ("InvalidRuntime", r"Runtime ruby", "runtime Ruby"),
    ("InvalidRuntime", r"Runtime nodejs", "runtime Node.js"),
    ("InvalidRuntime", r"Runtime python", "runtime Python"),
    ("InvalidRuntime", r"", "runtime of another name"),
    ("InvalidImage", r"", "image that is not built"),
    ("InvalidZipFileException", r"bucket", "code in a bucket"),
    ("InvalidZipFileException", r"", "code that is not there"),
    ("DependencyError", r"there is no arn:", "layer of another account"),
    ("DependencyError", r"", "layer or package that is not there"),
    ("InvalidConfiguration", r"Architectures|x86_64", "machine code for arm64"),
    ("InvalidConfiguration", r"DurableConfig", "durable executions"),
    ("InvalidConfiguration", r"", "a property that is wrong"),
    (NOT_BUILT, r"no time for its build", "build that was not tried"),
    (NOT_BUILT, r"", "`sam build` fails"),
]


def templates(folder: Path) -> list[Path]:
    """Those with functions, in order."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - PASSED_OVER)
        for name in sorted(files):
            path = Path(place, name)
            if path.suffix in KINDS and not path.is_symlink() and not PLACEHOLDER.search(str(path)):
                text = path.read_text(errors="replace")
                if FUNCTION.search(text) and "Resources" in text and not PLACEHOLDER.search(text):
                    found.append(path.resolve())
    return found


def of_worker(path: Path, options: list[str]) -> dict:
    words = [MAYFLY, "up", "--check", "--json", path, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode in (0, 1) and done.stdout.startswith("{"):
        return json.loads(done.stdout)
    if done.returncode != 1:
        return {"crash": f"exit status {done.returncode}: {done.stderr[-300:]}"}
    return {"error": done.stderr.strip()[-400:]}


def read(paths: list[Path], options: list[str]) -> list[dict]:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(lambda path: of_worker(path, options), paths))


def of_sam(paths: list[Path], python: Path) -> list[dict]:
    """Two processes read them: its transform takes a second for a template."""
    if not python.exists():
        raise BenchError(f"{python}: there is no aws-sam-cli: worker/tests/run installs it")
    halves = [paths[::2], paths[1::2]]

    def halved(half: list[Path]) -> list[dict]:
        done = subprocess.run(
            [python, HERE / "corpus_sam.py"],
            input="".join(f"{path}\n" for path in half),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BenchError(f"sam local's classes: {done.stderr[-300:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, second = threads.map(halved, halves)
    return [one for pair in zip(first, [*second, None], strict=False) for one in pair if one is not None]


def cause_of(function: dict) -> str:
    code, reason = function["StateReasonCode"], function["StateReason"]
    return next(cause for of, words, cause in CAUSES if of == code and re.search(words, reason))


def must_be_built(function: dict) -> bool:
    return bool(function["Unbuilt"]) and not function["StateReason"]


def owner_of(path: Path, folder: Path) -> str:
    return path.relative_to(folder.resolve()).parts[0]


class Corpus:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.flat: dict = {}
        self.lines: list[str] = []

    def count(self, key: str, number: int = 1) -> None:
        self.flat[key] = self.flat.get(key, 0) + number

    def main(self) -> int:
        folder = self.options.folder
        paths = templates(folder)
        if not paths:
            raise BenchError(f"{folder}: no template with functions is there")
        say(f"{len(paths)} templates")
        nearest = read(paths, ["--nearest-runtime"])
        if self.options.only_build:
            self.built(paths, nearest)
            return 0
        theirs, own = of_sam(paths, self.options.sam), read(paths, [])
        for path, sam, mayfly in zip(paths, theirs, own, strict=True):
            self.one(path, sam, mayfly)
        for mayfly in nearest:
            self.served("nearest.", mayfly)
        if self.options.build:
            self.built(paths, nearest)
        self.repositories(paths)
        self.flat["agree.percent"] = (
            100 * self.flat.get("agree.templates", 0) / self.flat["compared.templates"]
        )
        for way in self.ways():
            of = {kind: self.flat.get(f"{way}served.{kind}", 0) for kind in ("templates", "whole", "part")}
            self.flat[f"{way}served.whole_percent"] = 100 * of["whole"] / of["templates"]
            self.flat[f"{way}served.part_percent"] = 100 * (of["whole"] + of["part"]) / of["templates"]
        self.flat |= command.machine(False)
        self.flat["machine.sam"] = self.sam_version()
        flat = write(self.options.output, self.flat, self.goals())
        return command.report(self.options, flat, self.tables, self.goals())

    def one(self, path: Path, sam: dict, mayfly: dict) -> None:
        name = str(path.relative_to(self.options.folder.resolve()))
        if "crash" in mayfly:
            self.count("crashed.templates")
            self.lines.append(f"{name}: {mayfly['crash']}")
            return
        if "error" in mayfly:
            both = "error" in sam
            self.count("unread.both" if both else "unread.templates")
            if both or not sam["functions"]:
                return
            self.lines.append(f"{name}: {mayfly['error']}")
        else:
            failed = self.served("", mayfly)
            self.lines += [f"{name}: {one['Id']}: {one['StateReason']}" for one in failed]
        if "error" in sam:
            self.count("unread.sam")
            return
        self.count("compared.templates")
        if "error" in mayfly:
            self.count("differ.all.templates")
            return
        differences = corpus_compare.differences(sam, mayfly)
        real = {kind for kind, _ in differences if not kind.startswith("account")}
        for kind in {kind for kind, _ in differences}:
            self.count(f"differ.{kind}.templates")
        self.lines += [f"{name}: {kind}: {text}" for kind, text in differences]
        self.count("differ.templates" if real else "agree.templates")

    def served(self, way: str, mayfly: dict) -> list[dict]:
        """Counts what of a template is served, and returns the functions that are not."""
        functions = mayfly.get("Functions")
        if not functions:
            return []
        failed = [one for one in functions if one["StateReason"]]
        self.count(f"{way}served.templates")
        self.count(f"{way}served.functions", len(functions))
        some = "part" if len(failed) < len(functions) else "none"
        self.count(f"{way}served.{some if failed else 'whole'}")
        self.count(f"{way}served.failed_functions", len(failed))
        self.count(f"{way}served.unbuilt_functions", sum(bool(one["Unbuilt"]) for one in functions))
        for _, _, cause in CAUSES:
            self.count(f"{way}cause.{cause}.functions", 0)  # the table has a row for each
        for cause, number in collections.Counter(map(cause_of, failed)).items():
            self.count(f"{way}cause.{cause}.templates")
            self.count(f"{way}cause.{cause}.functions", number)
        return failed

    def built(self, paths: list[Path], nearest: list[dict]) -> None:
        """Counts what is served once the functions are built that must be."""

        def check(template: Path) -> dict:
            return of_worker(template, ["--nearest-runtime"])

        sam = self.options.sam.absolute().with_name("sam")
        builds = corpus_build.Builds(self.options.built, self.options.minutes)
        for _, cause in corpus_build.CAUSES:
            self.count(f"build.cause.{cause}.templates", 0)  # the table has a row for each
        # In an order by chance, so that those of a run that is ended are a sample.
        pairs = zip(paths, nearest, strict=True)
        for path, mayfly in sorted(pairs, key=lambda pair: corpus_build.digest(str(pair[0]))):
            missing = [one for one in mayfly.get("Functions", []) if must_be_built(one)]
            if missing:
                name = str(path.relative_to(self.options.folder.resolve()))
                say(f"sam build {name}")
                found = builds.of(name, lambda path=path: corpus_build.built(path, sam, check))
                mayfly = self.after_build(name, mayfly, found)
            self.served("built.", mayfly)

    def after_build(self, name: str, mayfly: dict, found: dict | str | None) -> dict:
        """What is served of a template that must be built; counts what came of the build."""
        self.count("build.needed.templates")
        if found is None:
            outcome, reason = "not_tried", "there was no time for its build"
        elif isinstance(found, dict) and found.get("Functions"):
            outcome, reason = "built", "the build lacks the handler"
            mayfly = found
        else:
            outcome, reason = "failed", str(found)
            self.count(f"build.cause.{corpus_build.cause_of(reason)}.templates")
        self.count(f"build.{outcome}.templates")
        for one in mayfly["Functions"]:
            if must_be_built(one):
                one |= {"StateReasonCode": NOT_BUILT, "StateReason": reason}
                self.lines.append(f"{name}: {one['Id']}: {reason}")
        if outcome == "built" and not any(one["StateReason"] for one in mayfly["Functions"]):
            self.count("build.whole.templates")
        return mayfly

    def ways(self) -> dict[str, str]:
        return {way: title for way, title in WAYS.items() if way != "built." or self.options.build}

    def repositories(self, paths: list[Path]) -> None:
        for name, number in collections.Counter(
            owner_of(path, self.options.folder) for path in paths
        ).items():
            commit = self.options.folder / name / ".commit"
            shown = name.replace("+", "/", 1)
            self.flat[f"repository.{shown}.templates"] = number
            self.flat[f"repository.{shown}.commit"] = commit.read_text().strip() if commit.exists() else "?"
        self.flat["repositories"] = sum(key.startswith("repository.") for key in self.flat) // 2

    def sam_version(self) -> str:
        words = [self.options.sam, "-c", "import samcli; print(samcli.__version__)"]
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()

    def goals(self) -> list[Shown]:
        flat, way = self.flat, list(self.ways())[-1]
        return [
            at_least("templates read as sam local reads them", 97, flat["agree.percent"], "%"),
            at_least("templates served whole", 60, flat[f"{way}served.whole_percent"], "%"),
            at_least("templates served in part or whole", 80, flat[f"{way}served.part_percent"], "%"),
            at_most("templates that crash the reader", 0, flat.get("crashed.templates", 0), ""),
        ]

    def tables(self) -> None:
        def rows(start: str, end: str) -> list[list[str]]:
            found = [
                (key, value)
                for key, value in self.flat.items()
                if value and key.startswith(start) and key.endswith(end)
            ]
            found.sort(key=lambda pair: -pair[1])
            return [[key[len(start) : -len(end)], str(value)] for key, value in found]

        print(f"\n{self.flat['agree.percent']:.1f}% of {self.flat['compared.templates']} templates agree")
        table([["differs in", "templates"], *rows("differ.", ".templates")])
        for way, title in self.ways().items():
            counts = ([of, str(self.flat.get(f"{way}served.{of}", 0))] for of in ("whole", "part", "none"))
            print(f"\nserved {title}")
            table([["", "templates"], *counts])
            table([["not served for", "functions"], *rows(f"{way}cause.", ".functions")])
        if self.options.differences:
            print("\n".join(self.lines))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/worker/corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of checkouts")
    parser.add_argument(
        "--sam", type=Path, default=SAM, metavar="PYTHON", help="a Python that has aws-sam-cli"
    )
    parser.add_argument(
        "--differences", action="store_true", help="show each difference and each failed function"
    )
    parser.add_argument("--build", action="store_true", help="run `sam build` where code must be built first")
    parser.add_argument(
        "--built",
        type=Path,
        default=ROOT / "target" / "corpus",
        metavar="FOLDER",
        help="where what came of builds is kept",
    )
    parser.add_argument(
        "--minutes", type=float, default=600, metavar="N", help="no build begins later (default: 600)"
    )
    parser.add_argument("--only-build", action="store_true", help="end after the builds, without results")
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, not as tables"
    )
    output = ROOT / "bench" / "results" / "worker-corpus.json"
    parser.add_argument("--output", type=Path, default=output, metavar="FILE", help="the file for the JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(command.outcome(Corpus(arguments()).main))
