"""The command: runs the four workloads on Mayfly and on its peers, learns from profiles, prints tables,
writes bench/results/lifetime.json after each workload."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType

from bench import command, history
from bench.heap.allocators import Allocator, find
from bench.heap.machine import thp_setting
from bench.lifetime import (
    builds,
    image_study,
    learning,
    releases,
    sampling,
    tables,
    third_party,
    times,
    variants,
)
from bench.lifetime.goals import shown
from bench.lifetime.results import Results
from bench.lifetime.workloads import FULL, QUICK, WORKLOADS, Run, Size, Workload
from bench.outcome import BenchError, Shown, read, say, write
from bench.samples import Samples

# The model learns from these runs and is used in another. Four, since few samples leave a class to chance.
PROFILED_SEEDS, MEASURED_SEED = (1, 3, 4, 5), 2

EPILOG = """
variants
  tcmalloc            on huge pages (gperftools; transparent huge pages 'always')
  tcmalloc_returning  as LLAMA §9.1 counts it: free spans returned at once, a huge page is
                      occupied while anything on it is
  jemalloc531:decay, mimalloc3, glibc
                      other peers as installed; jemalloc 5.3.1 returns memory in the background
  online              Mayfly without a model
  model               Mayfly with a model learned from a profile of another run, and learning on
  model_only          Mayfly with the model alone
  paper               the paper's configuration: lines, recycling as §6.3, deadlines by K = 2, pages whole
                      until they are empty, the model alone; paper_k1, paper_k4: other K
  oracle              a trace replayed with right lifetimes (Fig. 9)
  learn               a model is learned, and no run uses it; for third-party servers also if an older one
                      exists
  jemalloc:decay      for third-party servers: Debian's jemalloc
  times               no workload: the cost of a malloc and of a prediction (Tables 1 and 4, Fig. 11b)

examples
  bench/lifetime/run                                   everything (two hours on two idle cores; the trace
                                                       of the image server takes 13 GiB of disk)
  bench/lifetime/run --resume                          the rest of an interrupted run, and what is older than
                                                       the code
  bench/lifetime/run --rounds 3 --samples target/bench/lifetime.samples   in pieces: a run that ended is kept
  bench/lifetime/run --peer mesh=/opt/libmesh.so       Mesh (§9.6), or another allocator, as well
  bench/lifetime/run --quick --only pipeline           seconds
  bench/lifetime/run --only builds,releases            models bound to other builds and releases (minutes)
  bench/lifetime/run --only image_study                sampling rates and builds of it (half an hour)
  bench/lifetime/run --only sampling --rounds 5        the cost of sampling, in CPU of a server and in time
  bench/lifetime/run --only mariadb,recursor           third-party servers with a model (minutes)
  bench/lifetime/run --only image --variants tcmalloc,model --rounds 5
"""
NAMES = (*variants.PEERS, "online", "model", "model_only", "paper", "oracle", "times")
# The paper's own figures are in the file as rows.
PUBLISHED = {f"{name}.llama" for name in WORKLOADS}
OF_PAPER = {"paper": 2, "paper_k1": 1, "paper_k4": 4}
OF_SERVERS = (third_party.LEARN, *third_party.PEERS)
SOURCES = history.sources_of("lifetime.json")
# Keys of the file that belong to no workload.
TIMES = ("paths.", "model.")
# Parts that are neither a workload of the paper nor times.
STUDIES = {one.NAME: one for one in (builds, image_study, releases, sampling)} | third_party.STUDIES


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "lifetime/run",
        "Runs LLAMA's workloads on Mayfly and on its peers: fragmentation, speed, accuracy. The file keeps"
        " its results of workloads that are not run.",
        "workload",
        {one.name: one.about for one in WORKLOADS.values()}
        | {name: study.ABOUT for name, study in STUDIES.items()},
        EPILOG,
        "a twentieth of the load: seconds; its memory means nothing",
        "lifetime.json",
        rounds=1,
    )
    parser.add_argument("--variants", metavar="NAME,...", help="these variants and no others")
    parser.add_argument("--resume", action="store_true", help="leave out parts that the file has whole")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=LIB.so[,VAR=VALUE...]",
        help="another allocator, with its settings; repeatable",
    )
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="keep each run there; what is there is not run again"
    )
    parsed = parser.parse_args()
    try:
        parsed.added = variants.added_by(parsed.peer)
    except ValueError as error:
        parser.error(f"--peer {error}")
    command.choose(parser, parsed, "only", [*WORKLOADS, *STUDIES])
    known = dict.fromkeys([*NAMES, *OF_PAPER, *OF_SERVERS, *parsed.added])
    command.choose(parser, parsed, "variants", known)
    parsed.variants += [name for name in parsed.added if parsed.variants and name not in parsed.variants]
    return parsed


def without_variants_of_root(chosen: list[str]) -> list[str]:
    if os.geteuid() == 0 and thp_setting() != "absent":
        return chosen
    say("not root, or no transparent huge pages here: tcmalloc is left out")
    return [name for name in chosen if not name.startswith("tcmalloc")]


class Comparison:
    def __init__(
        self,
        options: argparse.Namespace,
        added: Mapping[str, Allocator] = MappingProxyType({}),
        kept: Samples | None = None,
    ):
        self.options, self.added = options, added
        self.kept = kept or Samples(None, Path(), {})
        self.before = earlier(options.output)
        self.results = Results()
        self.times: dict = {}
        self.studied: dict[str, dict] = {}
        self.size: Size = QUICK if options.quick else FULL
        self.machine = command.machine(options.quick, transparent_huge_pages=thp_setting())
        self.stamps: dict[str, object] = {}
        self.older = history.older(self.before, SOURCES)
        self.variants = without_variants_of_root(options.variants or [*NAMES, *self.added])
        chosen = [name for name in options.only or WORKLOADS if name in WORKLOADS]
        self.workloads = [name for name in chosen if not self.is_there(f"{name}.whole")]
        studies = [name for name in STUDIES if name in options.only] if options.only else []
        if not options.only and not options.variants:
            studies = list(STUDIES)
        self.studies = [name for name in studies if not self.is_there(f"{name}.whole")]
        all_of_it = not options.only or "image" in options.only
        self.with_times = "times" in self.variants and all_of_it and not self.is_there("paths.whole")

    def is_there(self, mark: str) -> bool:
        """Whether --resume is given and an earlier run of this size has measured the part whole, with the
        code as it is."""
        if not self.options.resume or self.before.get(mark) != ("quick" if self.options.quick else "full"):
            return False
        part = mark.removesuffix("whole")
        stale = sorted(row for row in self.older if row.startswith(part))
        for row in stale:
            commit, changed = self.older[row]
            say(f"{row} is of {commit}, and older than {', '.join(changed)}")
        return not stale

    def run(self) -> int:
        history.refuse_changes(self.options.output, SOURCES)
        for name in self.workloads:
            self.compare(WORKLOADS[name])
            self.write()
        if self.with_times:
            self.attempt("image", "times", self.measure_times)
        for name in self.studies:
            self.attempt(name, "all", lambda name=name: self.study(name))
            self.write()
        return command.report(
            self.options, self.write(), self.print_tables, self.goals(), self.results.failures
        )

    def print_tables(self) -> None:
        tables.print_all(self.results)
        if self.times:
            times.print_all(self.times)
        for name, flat_of_one in self.studied.items():
            STUDIES[name].print_all(flat_of_one)

    def attempt(self, workload: str, name: str, measurement: Callable[[], str]) -> None:
        errors = (BenchError, OSError, ValueError, KeyError, subprocess.SubprocessError)
        with command.attempt(f"{workload} {name}", self.results.failures, (workload, name), errors) as result:
            result.append(measurement())

    def compare(self, workload: Workload) -> None:
        chosen = self.variants
        models: list[learning.Model] = []
        if {"model", "model_only", *OF_PAPER, third_party.LEARN}.intersection(chosen):
            self.attempt(workload.name, "learn", lambda: self.learn(workload, models))
        peers = [*variants.PEERS, *self.added]
        made = {name: partial(variants.peer, name, self.added) for name in peers}
        made["online"] = variants.online
        if models:
            path = models[0].path
            made["model"] = partial(variants.with_model, path)
            made["model_only"] = partial(variants.model_only, path)
            made |= {name: partial(variants.paper, path, k) for name, k in OF_PAPER.items()}
        for number in range(self.options.rounds):
            for name in filter(made.get, chosen):
                if (workload.name, variants.plain(name)) not in self.results.failures:
                    measure = partial(self.measure, workload, made[name], number)
                    self.attempt(workload.name, variants.plain(name), measure)
        if "oracle" in chosen:
            self.attempt(workload.name, "oracle", lambda: self.replay(workload))

    def learn(self, workload: Workload, models: list[learning.Model]) -> str:
        kept, key = self.kept, (workload.name, "learn")
        if not (kept.get(key) and learning.model_path(workload, learning.HIDDEN).exists()):
            seeds = PROFILED_SEEDS[:1] if self.options.quick else PROFILED_SEEDS
            profiles = [learning.profile(workload, self.size, seed) for seed in seeds]
            kept.add(key, learning.train(workload, profiles).accuracy)
        models.append(learning.Model(learning.model_path(workload, learning.HIDDEN), kept.get(key)))
        self.results.accuracy[workload.name] = models[0].accuracy
        right, agree = (
            models[0].accuracy.get(f"train.{name}_percent") for name in ("other_run.bytes", "profiles_agree")
        )
        return f"{right}% of another run's bytes; two runs agree on the class of {agree}%"

    def measure(self, workload: Workload, make: Callable[[], variants.Variant], number: int) -> str:
        variant = make()
        kept, key = self.kept, (workload.name, variant.name, number)
        if not kept.get(key):
            run = workload.run(variant, self.size, MEASURED_SEED)
            if variant.name.startswith(("model", "paper")) and not run.heap.get("heap.model_bytes"):
                raise BenchError("the heap did not take the model")
            kept.add(key, asdict(run))
        run = Run.kept(kept.get(key))
        self.results.add(workload.name, variant.name, run)
        end = run.at_end
        return (
            f"{run.speed['requests_per_s']:.0f}/s, {end.resident:.0f} MiB on {end.ranges:.0f} MiB of ranges"
            f" for {end.live:.0f} live"
        )

    def measure_times(self) -> str:
        self.times = times.measure(self.options.quick)
        return "done"

    def study(self, name: str) -> str:
        measured = STUDIES[name].measure(self.options)
        self.stamp(measured)
        own = {key: value for key, value in self.stamps.items() if key.startswith(f"{name}.")}
        self.studied[name] = measured | own
        if self.options.variants:
            self.studied[name] = beside(self.before, name, self.studied[name])
        return "done"

    def replay(self, workload: Workload) -> str:
        kept, key = self.kept, (workload.name, "oracle")
        if not kept.get(key):
            kept.add(key, learning.oracle(workload, self.size, MEASURED_SEED))
        self.results.oracle[workload.name] = found = kept.get(key)
        return f"{found['mayfly.2MiB.average_ratio']:.2f} of live"

    def goals(self) -> list[Shown]:
        """The goals, which hold for the full load only."""
        if self.options.quick:
            return []
        studied = (goal for name, flat in self.studied.items() for goal in STUDIES[name].shown(flat))
        return shown(self.results) + times.shown(self.times) + list(studied)

    def write(self) -> dict:
        """Writes the results so far, and the file's results of all other parts."""
        done = self.results.workloads()
        new = self.results.flat({}) | self.times
        self.stamp(new)
        for of_one in self.studied.values():
            new |= of_one
        measured = {history.row_of(key) for key in new}
        # Without --variants a part is measured whole.
        parts = tuple(f"{name}." for name in done) if not self.options.variants else ()
        parts += tuple(f"{name}." for name in self.studied) + (TIMES if self.times else ())
        known = tuple(f"{name}." for name in (*WORKLOADS, *STUDIES)) + TIMES
        kept = {
            key: value
            for key, value in self.before.items()
            if key.startswith(known)
            and not key.startswith(parts or "\0")
            and history.row_of(key) not in measured
        }
        size = "quick" if self.options.quick else "full"
        failed = {workload for workload, _ in self.results.failures}
        whole = {f"{name}.whole": size for name in done if name not in failed and not self.options.variants}
        if self.times:
            whole["paths.whole"] = size
        whole |= {f"{name}.whole": size for name in self.studied if not self.options.variants}
        now = self.goals()
        of_now = {goal.what for goal in now}
        again = tuple(part.replace(".", ": ") for part in parts) or "\0"
        goals = [
            goal
            for goal in goals_of(self.before)
            if goal.what not in of_now and not goal.what.startswith(again)
        ]
        flat = kept | self.machine | new | self.stamps | whole
        return write(self.options.output, flat, [*goals, *now])

    def stamp(self, measured: dict) -> None:
        """Gives new rows their commit, date, load and rounds: right after they were measured."""
        for row in dict.fromkeys(history.row_of(key) for key in measured if key.count(".") > 1):
            if f"{row}.commit" not in self.stamps and not row.startswith("failed.") and row not in PUBLISHED:
                stamp = history.stamp(measured.get(f"{row}.rounds", self.options.rounds))
                self.stamps |= {f"{row}.{name}": value for name, value in stamp.items()}


def earlier(path) -> dict:
    """The results of earlier runs in the file."""
    try:
        return read(path)
    except (FileNotFoundError, ValueError):
        return {}


def beside(before: dict, name: str, measured: dict) -> dict:
    """The new results of a study, and the file's results of its other parts."""
    part = lambda key: key.split(".")[1]  # noqa: E731
    again = {part(key) for key in measured}
    return {k: v for k, v in before.items() if k.startswith(f"{name}.") and part(k) not in again} | measured


def goals_of(flat: dict) -> list[Shown]:
    found: dict[str, dict] = {}
    for key, value in flat.items():
        if key.startswith("shown."):
            _, number, name = key.split(".")
            found.setdefault(number, {})[name] = value
    return [Shown(**goal) for goal in found.values()]


def main(options: argparse.Namespace) -> int:
    # Studies have the options alone.
    options.kept = Samples(options.samples, find("mayfly", {}).library, {"quick": options.quick})
    return Comparison(options, options.added, options.kept).run()


if __name__ == "__main__":
    options = arguments()
    sys.exit(command.outcome(lambda: main(options)))
