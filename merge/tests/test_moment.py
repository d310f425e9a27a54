"""What other threads do with memory at the very moment at which it is advised (programs/moment.c)."""

import pytest

CASES = ["dropping", "growing", "growing again", "reallocating", "many times", "droppers"]


@pytest.mark.parametrize("case", CASES)
def test_moment(built, store, case):
    late = built.program("late", "-shared", "-fPIC")
    print(built.run(store.socket, "moment", case, timeout=300, LD_PRELOAD=str(late)).stdout.strip())
    store.rested(case)
