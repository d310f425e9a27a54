"""Children that a program makes by clone, past the C library's handlers for fork (programs/bare_clone.c)."""

import pytest


@pytest.mark.parametrize("way", ["clone", "by number", "clone3", "by instruction"])
@pytest.mark.parametrize("case", ["at rest", "busy"])
def test_bare_clone(built, store, case, way):
    print(built.run(store.socket, "bare_clone", case, way).stdout.strip())
    store.rested(case)
