"""A user's mistakes, each as one line that names the fault, the place and the next step, and how a command
exits with it."""

import sys
from collections.abc import Callable


class TrainError(Exception):
    """Ends the program with its text on one line."""


def end_with(main: Callable[[list[str]], int]) -> None:
    """Runs `main` on the command line and exits with its status."""
    try:
        sys.exit(main(sys.argv[1:]))
    except TrainError as error:
        sys.exit(f"mayfly: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
