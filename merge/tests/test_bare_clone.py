"""Children that a program makes by clone, past the C library's handlers for fork (programs/bare_clone.c)."""

import pytest

WAYS = ["clone", "by number", "clone3"]
# No library sees a system call by the program's own instruction: amid another thread's call, its child may
# wait for a lock that nothing releases there (docs/merge.md).
CASES = [("busy", way) for way in WAYS] + [("at rest", way) for way in [*WAYS, "by instruction"]]


@pytest.mark.parametrize(("case", "way"), CASES)
def test_bare_clone(built, store, case, way):
    print(built.run(store.socket, "bare_clone", case, way).stdout.strip())
    store.rested(case)
