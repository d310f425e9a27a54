"""`python -m train`, which `mayfly train` starts: learn a model from profiles, compare encoders, or measure
a model."""

import argparse
from pathlib import Path

from train import progress
from train.errors import TrainError, end_with

ENCODERS = ("auto", "table", "lstm-tokens", "lstm-frames")


def arguments(given: list[str]) -> argparse.Namespace:
    """The command line of `mayfly train`, read; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="mayfly train",
        description="Learns lifetimes from profiles of 'mayfly profile'.",
        allow_abbrev=False,
    )
    parser.add_argument("profiles", nargs="+", metavar="PROFILE.parquet|DATASET")
    parser.add_argument("--where", metavar="EXPRESSION", help="which partitions of a data set")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-o", "--output", metavar="MODEL", help="the model file to write")
    what.add_argument("--compare", action="store_true", help="train every encoder and compare")
    what.add_argument("--measure", metavar="MODEL", help="measure this model on the profiles")
    parser.add_argument("--encoder", choices=ENCODERS, default="auto")
    parser.add_argument("--hidden", type=int, choices=(16, 64), default=64)
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--confusions", choices=("alike", "costs"), default="alike")
    parser.add_argument("--engine", choices=("duckdb", "spark"), default="duckdb")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the confusion matrix")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(given)


def main(command_line: list[str]) -> int:
    """Runs the command line and returns the exit status. Raises TrainError for a user's mistake."""
    given = arguments(command_line)
    for path in (given.output, given.plot):
        if path and not Path(path).absolute().parent.is_dir():
            raise TrainError(f"{path}: no such directory")
    # Imported once the arguments are valid: these modules take a second to load.
    with progress.stage("starting"):
        from train import commands
        from train.data import partitions

    with partitions.opened(given.profiles, given.where, given.engine) as given.profiles:
        if given.compare:
            return commands.compare(given)
        if given.measure:
            return commands.measure_model(given)
        return commands.train(given)


if __name__ == "__main__":
    end_with(main)
