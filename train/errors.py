"""What a user can have done wrong, as one line that names what, where, and what to do next; and how a command
ends with it."""

import sys
from collections.abc import Callable


class TrainError(Exception):
    """Ends the program with its text on one line."""


def end_with(main: Callable[[list[str]], int]) -> None:
    """Does what the command line says, and ends the program with the exit status of it."""
    try:
        sys.exit(main(sys.argv[1:]))
    except TrainError as error:
        sys.exit(f"mayfly: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
