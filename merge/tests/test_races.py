"""Other threads use memory at the very moment at which it is advised (programs/races.c)."""

import pytest

CASES = ["dropping", "growing", "growing again", "reallocating", "many times", "droppers"]


@pytest.mark.parametrize("case", CASES)
def test_race(built, store, case):
    delayed_calls = built.program("delayed_calls", "-shared", "-fPIC")
    print(built.run(store.socket, "races", case, timeout=300, LD_PRELOAD=str(delayed_calls)).stdout.strip())
    store.rested(case)
