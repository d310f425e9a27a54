"""Tells the simulator when a function is warm: a call of getpgid with such a number is a mark.

Nothing else notices: no process has such a number.
"""

import contextlib
import os


def mark(code):
    with contextlib.suppress(OSError):
        os.getpgid(0x4D4D0000 | code)


def warming():
    """From here on every instruction is timed, so that caches and HOT get warm."""
    mark(3)


def measured():
    """From here on everything counts."""
    mark(1)
