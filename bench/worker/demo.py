"""Real functions under the bursty trace, first plainly, then on Mayfly: how many instances fit in a GiB, how
fast memory comes back, what it costs in latency. Everything shown is measured in this run."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.outcome import ROOT, BenchError
from bench.worker.experiments import replay
from bench.worker.worker import MAYFLY, PLAIN, running

RUNS = {"plain": PLAIN, "mayfly": []}
REPORT = ROOT / "target" / "demo.html"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 seconds of load instead of 30")
    parser.add_argument("--speed", type=float, default=6, help="minutes of the trace that pass in one [6]")
    return parser.parse_args()


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def run(name: str, options: argparse.Namespace, folder: Path) -> Path:
    """One run, kept in a file."""
    kept, load = folder / f"{name}.json", folder / "load.json"
    load_s = 10 if options.quick else 30
    say(f"{name}: starting the worker (the first start fetches the functions' packages)")
    with running(*RUNS[name], "--keep-alive", "3600") as worker:
        say(f"{name}: {load_s} s of requests; the page is at http://{worker.address}/")
        answered = replay(worker, round(load_s * options.speed), options.speed)
        load.write_text(json.dumps(answered))
        say(f"{name}: the load has dropped; how much memory do idle instances hold?")
        worker.wait_for_rest(limit_s=45)
        time.sleep(2)
        report("--worker", worker.address, "--load", load, "--name", name, "--keep", kept)
    return kept


def report(*options) -> str:
    done = subprocess.run([MAYFLY, "report", *options], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise BenchError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def main() -> int:
    options = arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="mayfly-demo-") as folder:
            kept = [run(name, options, Path(folder)) for name in RUNS]
            REPORT.parent.mkdir(exist_ok=True)
            table = report(*kept, "--output", REPORT)
            numbers = json.loads(report(*kept, "--json"))
    except BenchError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print("\n" + table)
    conclude(numbers)
    print(f"\n  Charts of both runs: {REPORT.relative_to(ROOT)}")
    return 0


def conclude(numbers: dict[str, float]) -> None:
    def pair(key: str) -> tuple[float | None, float | None]:
        return tuple(numbers.get(f"{name}.{key}") for name in RUNS)

    plain, ours = pair("density.rest_per_gib")
    if plain and ours:
        print(
            f"  At rest a GiB holds {ours:.1f} instances on Mayfly, {plain:.1f} plainly: {ours / plain:.2f}x."
        )
    plain, ours = pair("returned.half_ms")
    if ours is not None:
        and_plain = "never did while they were kept" if plain is None else f"took {plain / 1000:.0f} s"
        print(f"  Half of the memory came back {ours / 1000:.0f} s after the load; plainly that {and_plain}.")
    plain, ours = pair("latency.p99_ms")
    if plain and ours:
        print(f"  P99 latency {ours:.0f} ms, plainly {plain:.0f} ms: {100 * (ours / plain - 1):+.0f}%.")


if __name__ == "__main__":
    sys.exit(main())
