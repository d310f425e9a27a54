"""The command: measures the ways to share memory, prints tables, writes bench/results/merge.json."""

import argparse
import sys
import time
from pathlib import Path

from bench import command
from bench.merge import (
    environment,
    kernel,
    models,
    reads,
    regions,
    servers,
    serving,
    tables,
    torch_workers,
    upm,
)
from bench.merge.goals import shown
from bench.merge.machine import can_set_ksm
from bench.merge.regions import METHODS, PATTERNS, Shape
from bench.outcome import BenchError, say

PARTS = {
    "regions": "16 instances with a region each, 5% of it their own: memory, CPU and time of each method",
    "reads": "reading a merged table of 1 GiB beside one that is not: rows, random words, matrix by vector",
    "servers": "eight gunicorn workers with a forest, embeddings and a frame: memory, P99, start",
    "search": "four uvicorn workers, whose memory is mostly Python objects: memory, P99, start",
    "tables": "eight gunicorn workers with tables of pandas, Polars and DuckDB: memory, P50, P99, start",
    "torch": "eight workers with one model of PyTorch, or of transformers: memory, P50, answers alike",
    "sizes": "time of the first and the second call by size (UPM Fig. 7)",
    "cold": "model instances: cold start, where the time goes (Fig. 8, Table I)",
    "models": "model instances: memory of each and of all, for 1 to 16 (Fig. 5, 6)",
    "sharing": "what instances of models and functions could share, with and without ASLR (Fig. 1)",
    "ksm": "KSM on the same model instances, at its default and at its fastest",
    "upm": "the same functions and models on Mayfly's kernel in a VM (Fig. 5, 6, 8; hours of emulation)",
    "kernel": "madvise(MADV_UPM) on Mayfly's kernel in a VM, beside ksmd there (builds the kernel)",
}

EPILOG = """
methods  none; engine (mayfly share and libmayfly_merge.so), one instance after another, and
         engine_at_once; ksm_default and ksm_best (the kernel's own
         merging: needs root; its settings are put back afterwards). For model instances also mmap
         (torch.load(mmap=True)), advise (parameters as they lie), pack (parameters in an arena), all (and
         the libraries' tables), process (everything, after the first answer, in processes without ASLR).

examples
  bench/merge/run                           everything (hours; the first run downloads PyTorch, 5 GB)
  bench/merge/run --quick --only regions    small, in seconds, without PyTorch
  bench/merge/run --only torch --rounds 5   eight workers that have loaded one model, each for itself
  bench/merge/run --prepare                 makes the environment with PyTorch and the models, no more

Every instance's contents, and every model's answers bit by bit, are checked: a difference fails the run.
Times are of this run and this machine: compare ratios. Other load on the machine distorts them.
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "merge/run",
        "Compares ways to share identical memory between processes: what each saves and costs",
        "part",
        PARTS,
        EPILOG,
        "small sizes, few instances: a minute without PyTorch",
        "merge.json",
        rounds=0,
    )
    parser.add_argument(
        "--networks", metavar="NAME,...", help=f"of {', '.join(models.NETWORKS | models.FUNCTIONS)}"
    )
    parser.add_argument("--methods", metavar="NAME,...", help="these methods and no others")
    parser.add_argument(
        "--prepare", action="store_true", help="make the environment and the models, then stop"
    )
    parser.add_argument(
        "--kernel",
        type=Path,
        metavar="FOLDER",
        help="a kernel that kernel/build has made (default: the newest)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep what other parts left in the output file: only these parts change",
    )
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", PARTS, all_of=True)
    command.choose(parser, parsed, "networks", models.NETWORKS | models.FUNCTIONS)
    methods = [*METHODS, *(method for some in models.METHODS.values() for method in some)]
    command.choose(parser, parsed, "methods", dict.fromkeys(methods))
    return parsed


class Run(command.Run):
    def wants(self, method: str) -> bool:
        return not self.options.methods or method in self.options.methods

    def regions(self) -> None:
        quick = self.options.quick
        count, mib = (4, 32) if quick else (16, 256)
        # On a busy machine ksmd, which runs at the lowest priority, takes its time.
        limits_s = {"ksm_default": 5 if quick else 40, "ksm_best": 5 if quick else 300}
        for pattern in PATTERNS:
            methods = [method for method in regions.MEASURED[pattern] if self.wants(method)]
            if not can_set_ksm() and any(method.startswith("ksm") for method in methods):
                say(f"KSM left out of {pattern}: needs root, and a kernel with it")
                methods = [method for method in methods if not method.startswith("ksm")]
            shape, rounds = Shape(count, mib, pattern), self.options.rounds or (1 if quick else 3)
            self.measure(f"regions.{pattern}", regions.in_turn, shape, methods, limits_s, rounds)

    def reads(self) -> None:
        quick = self.options.quick
        self.measure("reads", reads.compare, 64 if quick else 1024, 3 if quick else 15)

    def servers(self) -> None:
        quick = self.options.quick
        workers, starts, requests = (2, 2, 200) if quick else (8, 5, 3000)
        self.measure("servers", servers.compare, serving.GUNICORN, workers, starts, requests)

    def search(self) -> None:
        workers, starts, requests = (2, 1, 200) if self.options.quick else (4, 3, 1500)
        self.measure("search", servers.compare, serving.UVICORN, workers, starts, requests)

    def tables(self) -> None:
        workers, starts, requests = (2, 1, 200) if self.options.quick else (8, 3, 1500)
        self.measure("tables", servers.compare, serving.TABLES, workers, starts, requests)

    def torch(self) -> None:
        quick = self.options.quick
        workers, requests = (2, 5) if quick else (8, 20)
        rounds = self.options.rounds or (1 if quick else 3)
        for model in torch_workers.MODELS:
            self.measure(f"torch.{model}", torch_workers.compare, model, workers, requests, rounds)

    def sizes(self) -> None:
        sizes = [16, 64] if self.options.quick else [16, 32, 64, 128, 256, 512, 1024, 2048]
        for mib, numbers in regions.by_size(sizes, 1 if self.options.quick else 5).items():
            self.keep(f"sizes.{mib}", numbers)
            say(f"sizes.{mib}")

    def networks(self) -> list[str]:
        if self.options.networks:
            return [name for name in self.options.networks if name in models.NETWORKS]
        if not environment.has_debian_torch():
            say("PyTorch 1.13 left out: 'apt install python3-torch' brings it")
            return [name for name in models.NETWORKS if not name.endswith(environment.DEBIAN)]
        return list(models.NETWORKS)

    def sharing(self) -> None:
        functions = [name for name in self.options.networks or models.FUNCTIONS if name in models.FUNCTIONS]
        for name in [*functions, *self.networks()]:
            for aslr in (True, False):
                self.measure(f"sharing.{name}.{'aslr' if aslr else 'no_aslr'}", models.sharing, name, aslr)

    def models(self) -> None:
        counts = [1, 2, 4] if self.options.quick else models.COUNTS
        for network in self.networks():
            for method in models.METHODS[network]:
                if self.wants(method):
                    self.measure(f"models.{network}.{method}", models.run, network, method, counts)
            answers = {self.flat.get(f"models.{network}.{m}.answer") for m in models.METHODS[network]} - {
                None
            }
            if len(answers) > 1:
                raise BenchError(f"{network}: its answers differ between methods")
            self.flat[f"models.{network}.answers_identical"] = len(answers) == 1

    def cold(self) -> None:
        for network in self.networks():
            begun = time.monotonic()
            for method, numbers in models.cold(network, 2 if self.options.quick else 5).items():
                self.keep(f"cold.{network}.{method}", numbers)
            say(f"cold.{network} (took {time.monotonic() - begun:.0f} s)")

    def kernel(self) -> None:
        self.measure("kernel", kernel.measure, self.options.kernel, self.options.quick)

    def upm(self) -> None:
        if len(self.options.only) == len(PARTS):
            say("upm left out: hours of emulation; --only upm runs it")
            return
        names = self.options.networks or [*models.FUNCTIONS, *upm.networks()]
        self.measure("upm", upm.measure, self.options.kernel, names, self.options.quick)

    def ksm(self) -> None:
        if not can_set_ksm():
            say("KSM left out: needs root, and a kernel with KSM")
            return
        for best in (False, True):
            method = "ksm_best" if best else "ksm_default"
            count, limit_s = (2, 5) if self.options.quick else (16, 60 if best else 30)
            if self.wants(method):
                self.measure(f"models.resnet50.{method}", models.run_ksm, "resnet50", best, count, limit_s)


def main() -> int:
    options = arguments()
    if options.prepare:
        return command.outcome(lambda: print(environment.model_files()) or 0)
    return Run(options, shown).main(tables.print_all)


if __name__ == "__main__":
    sys.exit(main())
