"""Third-party servers with a model: learned from runs of a smaller load, then used under the full one, beside
the heap without a model and beside its peers. Measures the peak and the end of each run, and replays a traced
run with right lifetimes (LLAMA Fig. 9)."""

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.compiled import BUILD
from bench.heap.allocators import Allocator, find
from bench.heap.measure import Numbers
from bench.heap.third_party import clickhouse, mariadb, recursor
from bench.lifetime import variants, web_service
from bench.lifetime.learning import mayfly
from bench.lifetime.variants import plain
from bench.outcome import BenchError, Shown, at_most, figure, medians, say, table

FOLDER = BUILD / "lifetime" / "servers"
STATISTICS = FOLDER / "statistics"
# As installed; tcmalloc also with each free span returned at once.
PEERS = ("jemalloc:decay", "jemalloc531:decay", "glibc", "tcmalloc", "tcmalloc_returning", "mimalloc3")
ONLINE, BOTH, ALONE, PAPER = "online", "model", "model_only", "paper"
OURS = (ONLINE, BOTH, ALONE, PAPER)
LEARN, ORACLE = "learn", "oracle"
EVERY_BYTES = 16 << 10
PROFILES = 2
AT_END_MOST, RANGES_MOST, PEAK_MOST, CPU_MOST, ORACLE_MOST = 0.95, 1.0, 1.02, 1.02, 1.15
NO_WORSE = 1.02
# The columns of the table: key, heading, divisor, digits; less is better.
COLUMNS = {
    "rss_kib": ("at end MiB", 1024, 0),
    "peak_rss_kib": ("peak MiB", 1024, 0),
    "ranges_kib": ("ranges at end", 1024, 0),
    "peak_ranges_kib": ("peak ranges", 1024, 0),
    "anon_huge_kib": ("on huge pages", 1024, 0),
    "cpu_ms": ("CPU s", 1000, 1),
    "live_kib": ("live MiB", 1024, 0),
}


@dataclass(frozen=True)
class Study:
    """One server, from its profiles to its memory with a model."""

    name: str
    ABOUT: str
    run: Callable[[Allocator, bool], Numbers]

    def measure(self, options: argparse.Namespace) -> dict:
        """Flat keys: `SERVER.VARIANT.…`, `SERVER.learned.…`, `SERVER.oracle.…`."""
        chosen = lambda name: not options.variants or name in options.variants  # noqa: E731
        model = FOLDER / f"{self.name}.mayfly-model"
        flat: dict = {}
        if chosen(LEARN) or not model.exists():
            learned = options.kept.get((self.name, LEARN)) if model.exists() else None
            if not learned:
                options.kept.add((self.name, LEARN), learned := self.learn(model, options.quick))
            flat |= {f"learned.{name}": value for name, value in learned.items()}
        makers = allocators(model, options.added)
        runs: dict[str, list[Numbers]] = {}
        for number in range(options.rounds):
            for name in filter(chosen, makers):
                found = options.kept.get(key := (self.name, name, number))
                if not found:
                    one = makers[name]()
                    found = self.run(one, options.quick)
                    if "MAYFLY_HEAP_MODEL" in one.settings:
                        found |= model_runs()
                    options.kept.add(key, found)
                runs.setdefault(name, []).append(found)
                self.say(f"{name} {number + 1}/{options.rounds}: {in_words(found)}")
        for name, of_one in runs.items():
            flat |= {f"{plain(name)}.{metric}": value for metric, value in medians(of_one).items()}
        if chosen(ORACLE):
            found = self.right_lifetimes()
            flat |= {f"{ORACLE}.{name}": value for name, value in found.items()}
            self.say(f"right lifetimes, replayed: {found['mayfly.2MiB.average_ratio']:.2f} of live")
        return {f"{self.name}.{name}": value for name, value in flat.items()}

    def say(self, line: str) -> None:
        say(f"{self.name}: {line}")

    def learn(self, model: Path, quick: bool) -> dict:
        """Makes a model of runs of the small load; returns its accuracy on the last of them."""
        tables = []
        for number in range(1 if quick else PROFILES):
            parts = fresh(f"{self.name}-{number}")
            self.run(mayfly_with(PROFILE=parts / "%p", PROFILE_BYTES=EVERY_BYTES), True)
            stem = FOLDER / f"{self.name}-{number}"
            mayfly("profile", "--from", parts, "-o", stem, "--json", timeout_s=300)
            tables.append(stem.with_name(f"{stem.name}.parquet"))
        output = mayfly("train", "--json", "-o", model, *tables, timeout_s=1200)
        accuracy = json.loads(output.strip().splitlines()[-1])
        right = accuracy.get("train.other_run.bytes_percent", accuracy.get("train.all.bytes_percent"))
        self.say(f"learned: {accuracy['train.contexts']} contexts, right for {right}% of bytes")
        return accuracy

    def right_lifetimes(self) -> dict:
        """The results of `mayfly replay` for a traced run of the small load. The trace is large and not
        kept."""
        traces = fresh(f"{self.name}-trace")
        try:
            self.run(mayfly_with(TRACE=traces / "%p"), True)
            whole = max(traces.iterdir(), key=lambda path: path.stat().st_size)
            text = mayfly("replay", whole, "--allocator", "recorded,mayfly,packed", "--json", timeout_s=1200)
        finally:
            shutil.rmtree(traces, ignore_errors=True)
        found = json.loads(text)
        return {name: one for name, one in found.items() if not name.startswith(("mayfly.end.", "timeline."))}

    def shown(self, flat: dict) -> list[Shown]:
        of = lambda name, metric: flat.get(f"{self.name}.{plain(name)}.{metric}")  # noqa: E731
        found = []
        for metric, label, most in (
            ("rss_kib", "memory at the end", AT_END_MOST),
            ("peak_rss_kib", "peak", PEAK_MOST),
            ("ranges_kib", "2 MiB ranges at the end", RANGES_MOST),
            ("cpu_ms", "CPU", CPU_MOST),
        ):
            best, ours = self.best_peer(flat, metric), of(BOTH, metric)
            if best and ours:
                what = f"{self.name}: {label} with a model by the best peer's"
                found.append(at_most(what, most, ours / best, "x"))
        both, online, alone = (of(name, "rss_kib") for name in (BOTH, ONLINE, ALONE))
        if both and online:
            what = f"{self.name}: memory at the end with a model by that without"
            found.append(at_most(what, 1, both / online, "x"))
        if both and online and alone:
            what = f"{self.name}: model and online by the better of the two"
            found.append(at_most(what, NO_WORSE, both / min(online, alone), "x"))
        oracle = of(ORACLE, "mayfly.2MiB.average_ratio")
        if oracle:
            what = f"{self.name}: right lifetimes, average memory by live"
            found.append(at_most(what, ORACLE_MOST, oracle, "x"))
        return found

    def peers(self, flat: dict) -> list[str]:
        """The peers that were measured, those of --peer among them, by the part that they are in keys."""
        parts = (key.split(".") for key in flat if key.startswith(f"{self.name}."))
        measured = dict.fromkeys(part[1] for part in parts if part[2:] == ["rss_kib"])
        return [name for name in measured if name not in OURS]

    def best_peer(self, flat: dict, metric: str) -> float | None:
        found = (flat.get(f"{self.name}.{peer}.{metric}") for peer in self.peers(flat))
        return min((value for value in found if value), default=None)

    def print_all(self, flat: dict) -> None:
        of = lambda name, metric: flat.get(f"{self.name}.{plain(name)}.{metric}")  # noqa: E731
        print(f"\n{self.name}: {self.ABOUT}; contexts learned: {of('learned', 'train.contexts') or '-'}")
        rows = [["", *(part for label, _, _ in COLUMNS.values() for part in (label, "to best peer"))]]
        for name in (*self.peers(flat), *OURS):
            if of(name, "rss_kib") is None:
                continue
            row = [name]
            for metric, (_, divisor, digits) in COLUMNS.items():
                value, best = of(name, metric), self.best_peer(flat, metric)
                row.append(figure(value and value / divisor, digits))
                row.append(f"{value / best:.2f}x" if value and best else "-")
            rows.append(row)
        table(rows)
        right = figure(of("learned", "train.other_run.bytes_percent"))
        oracle = figure(of(ORACLE, "mayfly.2MiB.average_ratio"), 2)
        print(f"  right for {right}% of another run's bytes; right lifetimes, replayed: {oracle}x live")
        if of(BOTH, "model_run_us"):
            run, cpu = (figure(of(BOTH, f"model_run{unit}")) for unit in ("_us", "_cpu_us"))
            number = figure(of(BOTH, "heap.predictions.model_runs"), 0)
            print(f"  the model ran {number} times, in {run} µs each, {cpu} of them on a processor")


STUDIES = {
    study.name: study
    for study in [
        Study("mariadb", "MariaDB under sysbench, with a model of a smaller load", mariadb.run),
        Study("recursor", "PowerDNS Recursor under dnsperf, likewise", recursor.run),
        Study("clickhouse", "ClickHouse with large aggregations, likewise", clickhouse.run),
        Study("web", "a web service in Python: orders, then reports at once, likewise", web_service.run),
    ]
}


def allocators(model: Path, added: dict[str, Allocator]) -> dict[str, Callable[[], Allocator]]:
    """All that a server runs on, in turn: the peers, those of --peer, and Mayfly's heap with and without a
    model."""
    made: dict[str, Callable[[], Allocator]] = {name: partial(find, name, added) for name in (*PEERS, *added)}
    made["tcmalloc_returning"] = variants.tcmalloc_returning
    with_model = partial(mayfly_with, MODEL=model, STATS=STATISTICS)
    return made | {
        ONLINE: mayfly_with,
        BOTH: with_model,
        ALONE: partial(with_model, LIFETIMES="model"),
        PAPER: lambda: with_statistics(variants.paper(model)),
    }


def in_words(found: Numbers) -> str:
    at_end, peak, cpu_s = found["rss_kib"] / 1024, found["peak_rss_kib"] / 1024, found["cpu_ms"] / 1000
    return f"{at_end:.0f} MiB at the end, {peak:.0f} at the peak, {cpu_s:.1f} s of CPU"


def model_runs() -> Numbers:
    """How often the model ran in the run that ended now, and its time, by the heap's counts: empty for a
    server that ends without exit()."""
    if not STATISTICS.exists():
        return {}
    heap = json.loads(STATISTICS.read_text())
    STATISTICS.unlink()
    if not heap.get("heap.model_bytes"):
        raise BenchError("the heap did not take the model")
    found = {name: value for name, value in heap.items() if name.startswith("heap.predictions.")}
    if runs := heap["heap.predictions.model_runs"]:
        found["model_run_us"] = heap["heap.predictions.model_ns"] / runs / 1000
        found["model_run_cpu_us"] = heap["heap.predictions.model_cpu_ns"] / runs / 1000
    return found


def mayfly_with(**settings) -> Allocator:
    one = find("mayfly", {})
    own = {f"MAYFLY_HEAP_{name}": str(value) for name, value in settings.items()}
    return replace(one, settings=one.settings | own)


def with_statistics(one: Allocator) -> Allocator:
    return replace(one, settings=one.settings | {"MAYFLY_HEAP_STATS": str(STATISTICS)})


def fresh(name: str) -> Path:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
