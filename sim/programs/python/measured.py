"""Marks the measured part of a function for the simulator: a call of getpgid with such a number is a mark.

MAYFLY_REGION selects the part: `import` (the process from its start until it has imported what it
needs), `first` (the first call of its handler, as in a container that is there already, §6.6) or `warm` (a
later one). Without it nothing is marked: the whole process counts, with two calls; `process` has it make
one. The call itself only fails, since no process has such a number.
"""

import contextlib
import os

REGION = os.environ.get("MAYFLY_REGION", "")
TIMED, BEGIN, END = 3, 1, 2


def mark(code):
    with contextlib.suppress(OSError):
        os.getpgid(0x4D4D0000 | code)


def called(handler):
    """Calls it twice, as a container that is there already would be: first and warm. Its result."""
    if REGION == "process":
        return handler()
    if REGION == "import":
        mark(END)
    elif REGION:
        mark(TIMED)
        if REGION == "first":
            mark(BEGIN)
    handler()
    if REGION == "first":
        mark(END)
    elif REGION == "warm":
        mark(BEGIN)
    answer = handler()
    # A function's end is its handler's return, not its process'.
    if REGION == "warm":
        mark(END)
    return answer
