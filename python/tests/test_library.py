"""The error when the library is missing or is another one."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("/nowhere/libmayfly_merge.so", "does not exist"),
        ("libc.so.6", "mayfly_advise"),
        (__file__, "invalid ELF header"),
    ],
)
def test_wrong_library_is_named(named, reason):
    code = """
import mayfly
try:
    mayfly.advise(bytes(100000))
except mayfly.MergeError as error:
    print(error.errno, error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"MAYFLY_MERGE_LIBRARY": named},
        cwd=PACKAGE,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    number, text = ran.stdout.split(maxsplit=1)
    assert int(number) == errno.ENOENT
    assert "MAYFLY_MERGE_LIBRARY" in text and named in text and reason in text
    assert text.count("\n") == 1
