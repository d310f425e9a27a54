"""From build to build, for bench/lifetime (`python -m train.studies.build_to_build`): how many of a build's
contexts another one has (LLAMA Table 2), and how much each kind of token contributes. For the
latter, networks learn from names without one kind of token, or with one kind only, and predict for the other
build."""

import argparse
import json
import re
from dataclasses import replace

import numpy as np

from train import progress
from train.data import contexts
from train.data.contexts import FRAME_SEPARATOR, Contexts
from train.data.tokens import functions_of, without_arguments
from train.errors import end_with
from train.model import measure, model_file, optional_deps, runtime_addresses
from train.model.recipe import Recipe

KINDS = ("scopes", "function", "template_arguments", "argument_types")
ROUNDS = 12
_INNERMOST = re.compile(r"<[^<>]*>")


def parts(function: str) -> dict[str, str]:
    """A function's name by kinds of tokens: the namespaces and classes that it is in, its own name, the
    arguments of its templates, and its own."""
    head = without_arguments(function)
    argument_types, templates = function[len(head) :], []
    # An operator's < is no bracket; one without a closing bracket stays.
    while inner := _INNERMOST.search(head):
        templates.append(inner.group())
        head = head[: inner.start()] + head[inner.end() :]
    scopes, _, own = head.rpartition("::")
    return dict(zip(KINDS, (scopes, own, " ".join(templates), argument_types), strict=True))


def of_kinds(frame: str, kinds: tuple[str, ...]) -> str:
    """A frame with only its tokens of these kinds."""
    functions = (parts(function) for function in functions_of(frame))
    return ";".join(" ".join(found[kind] for kind in kinds if found[kind]) for found in functions)


def reduced(data: Contexts, kinds: tuple[str, ...]) -> Contexts:
    """Contexts with such frames."""
    known: dict[str, str] = {}
    for frame in {frame for stack in data.stacks for frame in stack}:
        known[frame] = of_kinds(frame, kinds)
    return replace(data, stacks=[[known[frame] for frame in stack] for stack in data.stacks])


def matching(known: Contexts, other: Contexts) -> dict[str, float]:
    """How many of another build's contexts, and of its bytes, have the same functions as a known context."""
    names = {FRAME_SEPARATOR.join(stack) for stack in known.stacks}
    same = np.array([FRAME_SEPARATOR.join(stack) in names for stack in other.stacks])
    return {
        "contexts_percent": round(100 * float(same.mean()), 2),
        "bytes_percent": round(100 * float(other.bytes @ same / other.bytes.sum()), 2),
    }


def heap_accuracy(given: list[str]) -> dict[str, float]:
    """The heap's accuracy with a model in a run, for each of these, given as NAME=MODEL=PROFILE."""
    runs: dict[str, runtime_addresses.LocatedContexts] = {}
    found: dict[str, float] = {}
    for each in given:
        name, model, profile = each.split("=", 2)
        if profile not in runs:
            runs[profile] = runtime_addresses.load("duckdb", [profile])
        run = runs[profile]
        accuracy = measure.accuracy(
            run.contexts, runtime_addresses.predict(model_file.read(model), run)
        ).as_dict()
        for what in ("bytes", "bytes_off_by_one", "bytes_known"):
            found[f"{name}.{what}_percent"] = accuracy[f"{what}_percent"]
        progress.say(f"{name}: right for {found[f'{name}.bytes_percent']}% of the bytes")
    return found


def token_kinds(known: Contexts, other: Contexts, rounds: int) -> dict[str, float]:
    """The accuracy on another build of networks that have read only some kinds of tokens."""
    networks, found = optional_deps.networks(), {}
    choices = {"all": KINDS}
    for kind in KINDS:
        choices[f"without_{kind}"] = tuple(each for each in KINDS if each != kind)
        choices[f"only_{kind}"] = (kind,)
    for name, kinds in choices.items():
        with progress.stage(f"tokens: {name.replace('_', ' ')}"):
            learn, test = reduced(known, kinds), reduced(other, kinds)
            encoder, outcome = networks.learned(learn, Recipe("lstm-frames", rounds=rounds), rounds)
            accuracy = measure.accuracy(test, networks.classes(encoder, outcome, test))
        found[f"{name}.bytes_percent"] = round(100 * accuracy.bytes, 2)
        found[f"{name}.contexts_percent"] = round(100 * accuracy.unweighted, 2)
    return found


def main(command_line: list[str]) -> int:
    """Prints one JSON object of percents; returns the exit status. Raises TrainError for profiles that cannot
    be read."""
    parser = argparse.ArgumentParser(prog="train.studies.build_to_build", description=__doc__)
    parser.add_argument("known", help="the profile of the build that is known")
    parser.add_argument("others", nargs="+", metavar="NAME=PROFILE", help="of other builds")
    parser.add_argument("--heard", action="append", default=[], metavar="NAME=MODEL=PROFILE")
    parser.add_argument("--tokens", metavar="NAME", help="the build to compare kinds of tokens on")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(command_line)
    known = contexts.load("duckdb", [given.known])
    others = {
        name: contexts.load("duckdb", [path])
        for name, _, path in (each.partition("=") for each in given.others)
    }
    found = heap_accuracy(given.heard)
    for name, other in others.items():
        found |= {f"matching.{name}.{key}": value for key, value in matching(known, other).items()}
    if given.tokens:
        about = token_kinds(known, others[given.tokens], given.rounds)
        found |= {f"tokens.{key}": value for key, value in about.items()}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    end_with(main)
