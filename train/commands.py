"""The actions of `mayfly train`, and their output: a table for people, one object of flat keys for
programs."""

import argparse
import json
import time
from dataclasses import dataclass, replace

import numpy as np

from train import progress
from train.data import agreement, contexts, symbols
from train.data.contexts import Contexts
from train.data.dataset import CLASS_NAMES
from train.model import fit, link, measure, model_file, optional_deps, runtime_addresses, table
from train.model.measure import Accuracy
from train.model.recipe import Recipe


@dataclass
class Row:
    """A line of the table."""

    name: str
    accuracy: Accuracy | None
    seconds: float | None = None


def train(given: argparse.Namespace) -> int:
    """Makes a model file and prints its accuracy; returns the exit status. Raises TrainError where there is
    nothing to learn, or a file cannot be written."""
    if given.plot:
        optional_deps.install()
    begun = time.monotonic()
    made = fit.make(given.engine, given.profiles, _recipe(given, given.encoder, given.hidden))
    size = model_file.write(made.model, given.output)
    held_out = made.held_out
    if given.plot and held_out.of_file:
        measure.plot(held_out.of_file, given.plot, f"{made.recipe.encoder} on contexts held out of training")
    rows = [
        *([Row("other_run", made.other_run)] if made.other_run else []),
        Row("held_out", held_out.of_file),
        Row(f"held_out_{fit.ENOUGH_SAMPLES}_samples", held_out.of_file_many_samples),
        Row("held_out_before_rounding", held_out.as_trained),
        Row("all", made.all),
    ]
    with progress.stage("comparing the profiles with each other"):
        agree = agreement.between_runs(given.engine, given.profiles)
    if given.json:
        about = {
            "encoder": made.recipe.encoder,
            "contexts": len(made.data),
            "rounds": held_out.rounds,
            "seconds": round(time.monotonic() - begun, 1),
            "model_bytes": size,
            "ranges": len(made.model.starts),
        }
        if agree is not None:
            about["profiles_agree_percent"] = round(100 * agree, 2)
        _print_json("train", rows, about)
        return 0
    _print_contexts(made.data, _held_out(made.data))
    if agree is not None:
        print(f"the profiles agree with each other on the class of {100 * agree:.1f}% of the bytes")
    kind = f"{made.recipe.encoder} of width {given.hidden}, {held_out.rounds} rounds"
    _print_table(kind if not made.recipe.is_table else "a table", rows)
    amount = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"
    print(f"{given.output}: {amount}, for {_count(len(made.model.modules), 'file')} with code")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Trains every encoder on the same contexts, and prints the accuracy of each before rounding to 8 bits;
    returns the exit status. Raises TrainError where there is nothing to learn."""
    data = contexts.load(given.engine, given.profiles)
    contexts.refuse_too_little(data)
    optional_deps.install()
    from train.model.encoders import ENCODERS

    rows = [Row("most_common_class", _most_common_class(data))]

    def add(name: str, made_by: Recipe) -> None:
        with progress.stage(f"training {name}"):
            found = fit.measured(data, made_by, export_too=False)
            rows.append(Row(name, found.as_trained, found.seconds))
            other = fit.on_another_run(given.engine, given.profiles, made_by)
            if other:
                rows.append(Row(f"{name}_other_run", other))

    kinds = {False: "", True: "-by-costs"}
    for by_costs, suffix in kinds.items():
        add(table.NAME + suffix, replace(_recipe(given, table.NAME, 0), by_costs=by_costs))
    for hidden in (64, 16):
        for name in ENCODERS:
            # Only the default encoder is also trained by the costs of confusions.
            for by_costs in kinds if (name, hidden) == ("lstm-frames", 64) else (False,):
                made_by = replace(_recipe(given, name, hidden), by_costs=by_costs)
                add(f"{name}-{hidden}{kinds[by_costs]}", made_by)
    if given.json:
        _print_json("compare", rows, {"contexts": len(data)})
        return 0
    _print_contexts(data, _held_out(data))
    _print_table("encoder", rows)
    return 0


def measure_model(given: argparse.Namespace) -> int:
    """Prints a model's accuracy on other profiles, of other runs, revisions or builds (LLAMA §9.2): as the
    heap uses it, and, where it is for other builds, as `mayfly bind` could make it."""
    if given.plot:
        optional_deps.install()
    model = model_file.read(given.measure)
    with progress.stage(f"reading {_count(len(given.profiles), 'profile')}"):
        data = contexts.load(given.engine, given.profiles)
        contexts.refuse_none(data)
        run = runtime_addresses.load(given.engine, given.profiles)
    known = runtime_addresses.known_frames(model, run)
    rows = [Row("all", measure.accuracy(run.contexts, runtime_addresses.predict(model, run)))]
    if known < 1:
        with progress.stage("naming the functions of all files"):
            frames = link.link(model, symbols.load(given.engine, given.profiles))
            rows.append(Row("by_names", measure.accuracy(data, fit.predict(model, frames, data))))
    if given.plot:
        measure.plot(rows[0].accuracy, given.plot, f"{given.measure} on {len(data)} contexts")
    if given.json:
        _print_json("measure", rows, {"contexts": len(data), "frames_known_percent": round(100 * known, 2)})
        return 0
    _print_contexts(data)
    _print_table(given.measure, rows)
    if known < 1:
        print(
            f"the model has the files of {100 * known:.0f}% of the frames; 'by names' is its accuracy once "
            "'mayfly bind' has bound it to the others"
        )
    return 0


def _recipe(given: argparse.Namespace, encoder: str, hidden: int) -> Recipe:
    return Recipe(encoder, hidden, given.vocabulary, given.rounds, given.seed, given.confusions == "costs")


def _most_common_class(data: Contexts) -> Accuracy | None:
    common = np.bincount(data.labels, data.bytes).argmax()
    return measure.accuracy(data, np.full(len(data), common))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _held_out(data: Contexts) -> str:
    part = "a fifth of them" if len(fit.folds_for(data)) == 1 else "each a tenth in turn"
    return f", {part} held out of training"


def _print_contexts(data: Contexts, held_out: str = "") -> None:
    shares = np.bincount(data.labels, data.bytes, len(CLASS_NAMES)) / data.bytes.sum()
    print(f"{_count(len(data), 'context')}{held_out}")
    print("  class          " + "".join(f"{name:>9}" for name in CLASS_NAMES))
    counts = np.bincount(data.labels, minlength=len(CLASS_NAMES))
    print("  contexts       " + "".join(f"{count:>9,}" for count in counts))
    print("  of bytes       " + "".join(f"{100 * share:>8.1f}%" for share in shares))


def _print_table(title: str, rows: list[Row]) -> None:
    width = max(len(title), *(len(row.name) for row in rows))
    heads = "bytes right  within a class  outlived   cost  known   allocations right  contexts right"
    print(f"{title:<{width}}  {heads}")
    for row in rows:
        name = row.name.replace("_", " ")
        if not row.accuracy:
            print(f"{name:<{width}}  no contexts to measure on")
            continue
        a = row.accuracy
        shares = [a.bytes, a.bytes_near, a.outlived, a.cost, a.bytes_known, a.allocations, a.unweighted]
        text = "  {:10.1%}  {:14.1%}  {:8.1%}  {:5.2f}  {:5.0%}  {:18.1%}  {:14.1%}".format(*shares)
        print(f"{name:<{width}}{text}" + (f"  {row.seconds:.0f} s" if row.seconds is not None else ""))


def _print_json(prefix: str, rows: list[Row], about: dict) -> None:
    found = {f"{prefix}.{key}": value for key, value in about.items()}
    for row in rows:
        measured = row.accuracy.as_dict() if row.accuracy else {"contexts": 0}
        found |= {f"{prefix}.{row.name}.{key}": value for key, value in measured.items()}
        if row.seconds is not None:
            found[f"{prefix}.{row.name}.seconds"] = round(row.seconds, 1)
    print(json.dumps(found))
