"""The lifetimes of a profile's objects, for bench/lifetime (`python -m train.studies.lifetime_classes
PROFILE`): what percent of them die within each class, to be set beside those of a whole trace (LLAMA Fig.
11a). Samples of a context stand for all of its allocations."""

import argparse
import json

from train.data import profiles
from train.data.dataset import CLASS_NAMES, LAST
from train.data.profiles import FREED, LEFT
from train.errors import TrainError, end_with


def shares(paths: list[str]) -> dict[str, float]:
    """Percent of the objects by class. Those that were alive when their process ended are of the last one;
    one left while it ran on counts by its age then. Raises TrainError where no lifetime is known."""
    with profiles.engine("duckdb") as connection:
        t = profiles.read(connection, paths)
        counts = [t[freed] + t[left] for freed, left in zip(FREED, LEFT, strict=True)]
        counts[LAST] += t.live - sum(t[left] for left in LEFT)
        watched = sum(counts)
        one = t.allocations / watched.nullif(0)
        sums = {name: (one * count).sum() for name, count in zip(CLASS_NAMES, counts, strict=True)}
        (found,) = profiles.collect(t.aggregate(**sums), paths).to_pylist()
    total = sum(found[name] or 0 for name in CLASS_NAMES)
    if not total:
        raise TrainError(f"{', '.join(paths)}: no lifetime is known")
    return {name: 100 * (found[name] or 0) / total for name in CLASS_NAMES}


def main(command_line: list[str]) -> int:
    """Prints one JSON object; returns the exit status."""
    parser = argparse.ArgumentParser(prog="train.studies.lifetime_classes", description=__doc__)
    parser.add_argument("profiles", nargs="+", metavar="PROFILE.parquet")
    print(json.dumps(shares(parser.parse_args(command_line).profiles)))
    return 0


if __name__ == "__main__":
    end_with(main)
