"""The command: measures functions on the worker, prints tables, writes bench/results/worker.json."""

import argparse
import re
import sys

from bench import command
from bench.outcome import Shown, at_least, at_most, figure, grid, table
from bench.worker import experiments, in_vm, large, page_contents, paging, steps, times
from bench.worker.experiments import ADVISED, LIFETIMES, MODELS, SHIPPED, VARIANTS
from bench.worker.in_vm import INSTANCES, MODES

PARTS = {
    "memory": "1 to 16 instances of the model functions: memory of each and of all (UPM Fig. 5, 6)",
    "mix": "the same with 1 to 8 instances of each shipped function",
    "advise": "memory that idle instances advise: the ranges that their code names, or all",
    "private": "private pages of an instance at rest, by kind, and how many of them others have too",
    "cold": "cold starts (UPM Fig. 8)",
    "latency": "warm requests, plain and on Mayfly in turn",
    "starts": "the milliseconds of a cold start, by layer",
    "steps": "where those of a restored instance go, with an empty sandbox ready and without",
    "state": "pages of a starting instance that its function's page store has, and their cost",
    "template": "seconds until a worker serves a template of 60 functions",
    "rates": "requests a second of a function that does nothing, beside gunicorn",
    "rests": "the cost of resting and merging for functions that are called now and then",
    "paging": "idle instances of Node.js that are paged out to the host's swap",
    "vm": "instances in a VM: how fast memory is reclaimed, P99 (HotMem Fig. 8, 9)",
    "together": "all layers at once: memory of instances in a VM, with and without merging in its kernel",
}
TOGETHER = {"unmerged": False, "merged": True}
EPILOG = """
variants  plain (no layer), heap, merge (that layer alone), started (both, no snapshots), mayfly (all)

examples
  bench/worker/run                              everything
  bench/worker/run --quick --only memory        few instances, in a minute
  bench/worker/run --only vm --modes plain,nodes

With MAYFLY_BEFORE=PROGRAM the rates are that build's, too, as `before`, with the layers that lie beside it.

Times are of this run and this machine: compare ratios. Other programs that run meanwhile blur them.
"""


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "worker/run",
        "Measures functions on the worker, with and without Mayfly's layers",
        "part",
        PARTS,
        EPILOG,
        "few instances and requests: a minute a part",
        "worker.json",
    )
    parser.add_argument("--functions", metavar="NAME,...", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--variants", metavar="NAME,...", help="these variants and no others")
    parser.add_argument(
        "--modes", metavar="NAME,...", help=f"of {', '.join(MODES)}: how a VM's memory changes"
    )
    parser.add_argument("--keep", action="store_true", help="keep other parts' results in the output file")
    parsed = parser.parse_args()
    choices = {"only": PARTS, "functions": MODELS, "variants": VARIANTS, "modes": MODES}
    for option, names in choices.items():
        command.choose(parser, parsed, option, names, all_of=option != "variants")
    # Latencies differ by little: the two that matter get all the time, unless the user names others.
    parsed.compared = parsed.variants or ["plain", "mayfly"]
    parsed.variants = parsed.variants or list(VARIANTS)
    return parsed


class Run(command.Run):
    def memory(self) -> None:
        counts = [1, 2] if self.options.quick else [1, 2, 4, 8, 16]
        for function in self.options.functions:
            for variant in self.options.variants:
                name = f"memory.{function}.{variant}"
                self.measure(name, experiments.memory, (function,), variant, counts)

    def mix(self) -> None:
        counts = [1, 2] if self.options.quick else [1, 2, 4, 8]
        for variant in self.options.variants:
            self.measure(f"mix.{variant}", experiments.memory, SHIPPED, variant, counts)

    def advise(self) -> None:
        count = 2 if self.options.quick else 4
        for function in self.options.functions:
            for lifetimes in LIFETIMES:
                for advised in ADVISED:
                    name = f"advise.{function}.{lifetimes}.{advised}"
                    self.measure(name, experiments.advise, function, advised, lifetimes, count)

    def private(self) -> None:
        self.measure("private", page_contents.private, SHIPPED, 2 if self.options.quick else 4)

    def cold(self) -> None:
        for function in self.options.functions:
            for variant in self.options.variants:
                count = 1 if self.options.quick else 5
                self.measure(f"cold.{function}.{variant}", experiments.cold, function, variant, count)

    def latency(self) -> None:
        requests, rounds = (60, 1) if self.options.quick else (500, 3)
        for function in self.options.functions:
            self.measure(
                f"latency.{function}",
                experiments.latency,
                function,
                self.options.compared,
                requests,
                rounds,
            )

    def starts(self) -> None:
        for function in ("shell", "noop", *self.options.functions):
            rounds = 2 if self.options.quick else 11
            self.measure(f"starts.{function}", times.starts, function, rounds)

    def steps(self) -> None:
        for function in ("shell", "noop", *self.options.functions):
            self.measure(f"steps.{function}", steps.steps, function, 3 if self.options.quick else 21)

    def state(self) -> None:
        for function in ("noop", *self.options.functions):
            self.measure(f"state.{function}", page_contents.state, function)

    def template(self) -> None:
        for kind in large.KINDS:
            self.measure(f"template.{kind}", large.starts, kind, 2 if self.options.quick else 11)

    def rates(self) -> None:
        rounds, seconds = (1, 1) if self.options.quick else (3, 2)
        self.measure("rates", times.rates, rounds, seconds)

    def rests(self) -> None:
        rounds = 2 if self.options.quick else 20
        for function in self.options.functions:
            self.measure(f"rests.{function}", times.rests, function, rounds, 1.0)

    def paging(self) -> None:
        count, rounds = (2, 1) if self.options.quick else (8, 5)
        for way in paging.WAYS:
            self.measure(f"paging.node.{way}", paging.alike, way)
        self.measure("paging", paging.page_out, count, rounds)

    def vm(self) -> None:
        functions = ["page"] if self.options.quick else list(INSTANCES)
        for mode in self.options.modes:
            for function in functions:
                count, rounds = (2, 2) if self.options.quick else (INSTANCES[function], 6)
                self.measure(f"vm.{mode}.{function}", in_vm.reclaim, mode, function, count, rounds)

    def together(self) -> None:
        for function in self.options.functions:
            for name, merging in TOGETHER.items():
                count = 2 if self.options.quick else 4
                self.measure(f"together.{function}.{name}", in_vm.together, function, merging, count)


def shown(flat: dict) -> list[Shown]:
    """Only goals that this run measured."""
    found = []
    for function in MODELS:
        for key, method in (("each_mib", "by PSS"), ("available_drop_mib", "by the host's free memory")):
            plain, ours = (flat.get(f"memory.{function}.{one}.16.{key}") for one in ("plain", "mayfly"))
            if plain and ours:
                found.append(
                    at_least(f"16 instances of {function}: as dense, {method}", 2, plain / ours, "x")
                )
        plain, ours = (flat.get(f"latency.{function}.{one}.p99_ms") for one in ("plain", "mayfly"))
        if plain and ours:
            found.append(at_most(f"{function}: P99 over plain", 5, 100 * (ours / plain - 1), "%"))
    for kind in large.KINDS:
        if seconds := flat.get(f"template.{kind}.serves_s"):
            title = f"{large.FUNCTIONS} functions ({kind}): seconds until they are served"
            found.append(at_most(title, 1, seconds, "s"))
    for count in (4, 8):
        plain, ours = (flat.get(f"mix.{one}.{count}.each_mib") for one in ("plain", "mayfly"))
        if plain and ours:
            found.append(at_least(f"{count} of each shipped function: as dense", 2.5, plain / ours, "x"))
    for function in INSTANCES:
        plain = flat.get(f"vm.plain.{function}.mib_per_s")
        for mode in ("nodes", "hotmem"):
            ours = flat.get(f"vm.{mode}.{function}.mib_per_s")
            if plain and ours:
                title = f"{mode}: memory of {function} is reclaimed, times as fast as plain (HotMem: 7)"
                found.append(at_least(title, 7, ours / plain, "x"))
    return found


def print_tables(flat: dict) -> None:
    for prefix, title in (*((f"memory.{one}", one) for one in MODELS), ("mix", "each shipped function")):
        of_instances = re.compile(rf"{prefix}\.\w+\.(\d+)\.")
        counts = sorted({int(found[1]) for found in map(of_instances.match, flat) if found})
        if counts:
            print(f"\n{title}: MiB of an instance (PSS and its part of the store), and of all on the host")
            rows = [
                ["instances", *(f"{count} each" for count in counts), *(f"{count} all" for count in counts)]
            ]
            for variant in VARIANTS:
                values = [
                    flat.get(f"{prefix}.{variant}.{count}.{key}")
                    for key in ("each_mib", "available_drop_mib")
                    for count in counts
                ]
                if any(value is not None for value in values):
                    rows.append([variant, *(figure(value) for value in values)])
            table(rows)
    modes = [f"{lifetimes}, {advised}" for lifetimes in LIFETIMES for advised in ADVISED]
    grid(
        "Memory that idle instances advise",
        flat,
        {f"{one} {mode}": f"advise.{one}.{mode.replace(', ', '.')}" for one in MODELS for mode in modes},
        "lifetimes, advised | MiB each | private | after requests | advised MiB | in ms | P50 ms after",
        "each_mib private_mib private_after_mib advised_mib advise_ms p50_ms",
    )
    grid(
        "Times",
        flat,
        {f"{function} {variant}": f"{function}.{variant}" for function in MODELS for variant in VARIANTS},
        " | cold: answer ms | cold: start ms | warm P50 ms | warm P99 ms | after a rest P50 ms",
        "cold.{}.first_answer_ms cold.{}.start_ms latency.{}.p50_ms latency.{}.p99_ms "
        "latency.{}.rested_p50_ms",
    )
    print_times(flat)
    grid(
        "Instances in a VM: reclaimed memory, requests (HotMem Fig. 8, 9)",
        flat,
        {f"{function} {mode}": f"vm.{mode}.{function}" for function in INSTANCES for mode in MODES},
        " | unplugs | unplug P50 ms | MiB/s | requests | P50 ms | P99 ms",
        "unplugs unplug_p50_ms mib_per_s requests p50_ms p99_ms",
        0,
    )
    grid(
        "All layers at once: instances at rest in a VM, MiB",
        flat,
        {f"{function} {name}": f"together.{function}.{name}" for function in MODELS for name in TOGETHER},
        " | instances | MiB each | merged once | in place of | the VM on the host",
        "instances each_mib merged_mib stands_for_mib vm_resident_mib",
        0,
    )


def print_times(flat: dict) -> None:
    steps.print_steps(flat, ("shell", "noop", *MODELS))
    rows = [["ms until it asks for work", *VARIANTS, "mayfly / plain"]]
    for function in ("shell", "noop", *MODELS):
        values = [flat.get(f"starts.{function}.{variant}.start_ms") for variant in VARIANTS]
        if all(values):
            ratio = figure(values[-1] / values[0], 2)
            rows.append([function, *(figure(value, 1) for value in values), ratio])
    if len(rows) > 1:
        print("\nCold starts: medians")
        table(rows)
    measured = {"a second": "per_s", "P50": "p50_ms", "P99": "p99_ms"}
    grid(
        "A function that does nothing, by connections: requests a second, ms",
        flat,
        {name: f"rates.{name}" for name in ("before", "plain", "mayfly", *times.SERVERS)},
        " | ".join(["", *(f"{count}: {title}" for count in times.CONNECTIONS for title in measured)]),
        " ".join(f"{count}.{key}" for count in times.CONNECTIONS for key in measured.values()),
        2,
    )
    grid(
        "Resting and merging",
        flat,
        {function: f"rests.{function}" for function in MODELS},
        " | CPU s, plain | CPU s, Mayfly | after a pause, plain ms | Mayfly ms",
        "plain.cpu_s mayfly.cpu_s plain.after_pause_p50_ms mayfly.after_pause_p50_ms",
        2,
    )


if __name__ == "__main__":
    sys.exit(Run(arguments(), shown).main(print_tables))
