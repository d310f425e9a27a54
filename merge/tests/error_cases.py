"""One call of the library in a program of its own, and its result (programs/errors.c)."""

import errno
import re

import pytest
from store import check


def ask(built, name, *words, uid=None, socket="/nonexistent/socket", env=None, want=None, prefix=()):
    """Runs programs/errors.c for one case; checks and returns errno and line."""
    done = built.run(socket, "errors", name, *words, prefix=prefix, uid=uid, timeout=60, **(env or {}))
    check(not done.stderr, f"{name}: the library writes to stderr: {done.stderr[:200]!r}")
    number, _, line = done.stdout.rstrip("\n").partition("\t")
    if number == "skip":
        pytest.skip(line)
    number = int(number)
    if want is None:
        return number, line
    numbers, pattern = want
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    check(number in numbers, f"{name}: errno {errno.errorcode.get(number, number)}: {line!r}")
    if number:
        check("\n" not in line and 10 <= len(line) <= 300, f"{name}: not one clear line: {line!r}")
        check(re.search(pattern, line, re.I), f"{name}: does not say /{pattern}/: {line!r}")
    return number, line
