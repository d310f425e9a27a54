"""The command: runs the four workloads on tcmalloc and on Mayfly, learns from a profile, prints tables,
writes bench/results/lifetime.json."""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.heap.machine import thp_setting
from bench.heap.measure import RunFailed
from bench.lifetime import learning, tables, times, variants
from bench.lifetime.results import Results
from bench.lifetime.shown import shown
from bench.lifetime.workloads import FULL, QUICK, WORKLOADS, Size, Workload
from bench.outcome import RESULTS, BenchError, Shown, write

PROFILED_SEED, MEASURED_SEED = 1, 2  # what is learned from one run is used in another

EPILOG = """
variants
  tcmalloc            on huge pages (gperftools; transparent huge pages 'always')
  tcmalloc_returning  as LLAMA §9.1 counts it: free spans returned at once, a huge page is
                      occupied while anything on it is
  online              Mayfly without a model
  model               Mayfly with a model learned from a profile of another run, and learning on
  model_only          Mayfly with the model alone, as in the paper
  oracle              a trace replayed with right lifetimes (Fig. 9)
  times               none of the workloads: what a malloc and a prediction cost (Tables 1 and 4, Fig. 11b)

examples
  bench/lifetime/run                                   everything (20 minutes or so)
  bench/lifetime/run --quick --only pipeline           seconds
  bench/lifetime/run --only image --variants tcmalloc,model --rounds 5
"""
NAMES = ("tcmalloc", "tcmalloc_returning", "online", "model", "model_only", "oracle", "times")


def names(text: str, known: tuple[str, ...], option: str, parser: argparse.ArgumentParser) -> list[str]:
    chosen = [name for name in text.split(",") if name]
    for name in chosen:
        if name not in known:
            parser.error(f"{option} {name}: not known; there are {', '.join(known)}")
    return [name for name in known if name in chosen] if chosen else list(known)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/lifetime/run",
        description="Runs LLAMA's workloads on tcmalloc and on Mayfly: fragmentation, speed, accuracy.",
        epilog="workloads\n"
        + "\n".join(f"  {w.name:<12} {w.about}" for w in WORKLOADS.values())
        + "\n"
        + EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="WORKLOAD,...",
        help="these workloads; the file keeps what it has of others",
    )
    parser.add_argument("--variants", default="", metavar="NAME,...", help="these variants and no others")
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="runs of each variant, in turn (default 1)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the load: seconds; says nothing of memory"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, not as tables"
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "lifetime.json", metavar="FILE", help="where the JSON goes"
    )
    parsed = parser.parse_args()
    if parsed.rounds < 1:
        parser.error(f"--rounds {parsed.rounds}: must be 1 or more")
    parsed.only = names(parsed.only, tuple(WORKLOADS), "--only", parser)
    parsed.variants = names(parsed.variants, NAMES, "--variants", parser)
    return parsed


def without_what_needs_root(chosen: list[str]) -> list[str]:
    if os.geteuid() == 0 and thp_setting() != "absent":
        return chosen
    print("bench: not root, or no transparent huge pages here: tcmalloc is left out", file=sys.stderr)
    return [name for name in chosen if not name.startswith("tcmalloc")]


class Comparison:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.results = Results()
        self.times: dict = {}
        self.size: Size = QUICK if options.quick else FULL

    def attempt(self, workload: Workload, name: str, what: Callable[[], str]) -> None:
        """Does one thing; says how it went; a failure is kept and the others go on."""
        start = time.monotonic()
        try:
            outcome = what()
        except RunFailed as error:
            self.results.failures[workload.name, name] = str(error)
            outcome = f"FAILED: {error}"
        took = time.monotonic() - start
        print(f"bench: {workload.name} {name}: {outcome} (took {took:.0f} s)", file=sys.stderr, flush=True)

    def compare(self, workload: Workload) -> None:
        chosen = without_what_needs_root(self.options.variants)
        models: list[learning.Model] = []
        if "model" in chosen or "model_only" in chosen:
            self.attempt(workload, "learn", lambda: self.learn(workload, models))
        turn = [
            getattr(variants, name)()
            for name in ("tcmalloc", "tcmalloc_returning", "online")
            if name in chosen
        ]
        if models:
            with_model = {"model": variants.with_model, "model_only": variants.model_only}
            turn += [make(models[0].path) for name, make in with_model.items() if name in chosen]
        for _ in range(self.options.rounds):
            for variant in turn:
                if (workload.name, variant.name) not in self.results.failures:
                    self.attempt(
                        workload, variant.name, lambda variant=variant: self.measure(workload, variant)
                    )
        if "oracle" in chosen:
            self.attempt(workload, "oracle", lambda: self.replay(workload))

    def learn(self, workload: Workload, models: list[learning.Model]) -> str:
        table = learning.profile(workload, self.size, PROFILED_SEED)
        models.append(learning.train(workload, [table]))
        self.results.accuracy[workload.name] = models[0].accuracy
        return f"{models[0].accuracy.get('train.held_out.weighted_percent')}% weighted accuracy"

    def measure(self, workload: Workload, variant: variants.Variant) -> str:
        run = workload.run(variant, self.size, MEASURED_SEED)
        if variant.name.startswith("model") and not run.heap.get("heap.model_bytes"):
            raise RunFailed("the heap did not take the model")
        self.results.add(workload.name, variant.name, run)
        speed, resident = run.speed["requests_per_s"], run.end_resident_mib
        return f"{speed:.0f}/s, {resident:.0f} MiB for {run.end_live_mib:.0f} live"

    def measure_times(self) -> str:
        self.times = times.measure(self.options.quick)
        return "done"

    def replay(self, workload: Workload) -> str:
        size = QUICK if self.options.quick and workload.traced.scale > QUICK.scale else workload.traced
        found = learning.oracle(workload, size, MEASURED_SEED)
        self.results.oracle[workload.name] = found
        return f"{found['mayfly.2MiB.average_ratio']:.2f} of live"


def of_other_workloads(options: argparse.Namespace) -> tuple[dict, list[Shown]]:
    """With --only, what the file has of the workloads that are not run now: they are kept."""
    try:
        before = json.loads(options.output.read_text())
    except (FileNotFoundError, ValueError):
        return {}, []
    others = tuple(name for name in WORKLOADS if name not in options.only)
    kept = {
        key: value for key, value in before.items() if key.startswith(tuple(f"{name}." for name in others))
    }
    goals: dict[str, dict] = {}
    for key, value in before.items():
        if key.startswith("shown."):
            _, number, name = key.split(".")
            goals.setdefault(number, {})[name] = value
    return kept, [Shown(**goal) for goal in goals.values() if goal["what"].startswith(others)]


def main() -> int:
    options = arguments()
    comparison = Comparison(options)
    results = comparison.results
    # Ends what it has started when it is ended itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in options.only:
            comparison.compare(WORKLOADS[name])
        if "times" in options.variants and "image" in options.only:
            comparison.attempt(WORKLOADS["image"], "times", comparison.measure_times)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    machine = {
        "cpus": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "transparent_huge_pages": thp_setting(),
        "quick": options.quick,
    }
    # A twentieth of the load is not what the goals are about.
    found = [] if options.quick else shown(results) + times.shown(comparison.times)
    kept, others = of_other_workloads(options)
    flat = write(options.output, kept | results.flat(machine) | comparison.times, [*others, *found])
    if options.json:
        print(json.dumps(flat))
    else:
        tables.print_all(results, found)
        if comparison.times:
            times.print_all(comparison.times)
        print(f"\nWritten to {options.output}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
