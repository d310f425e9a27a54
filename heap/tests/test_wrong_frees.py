"""Invalid frees that the heap must detect: one line names pointer and caller, and the program ends."""

import re
import signal

import pytest
from preloaded import build, directives

CASES = directives("errors")
SIZED = [
    f"{name}-{size}"
    for size in ("small", "medium", "block", "large", "huge")
    for name in CASES["sized"].split()
]


@pytest.mark.parametrize("case", SIZED + CASES["others"].split())
def test_wrong_free(heap, case):
    check(heap, case)


@pytest.mark.parametrize("case", CASES["late"].split())
def test_wrong_free_is_noticed_before_the_place_is_reused(heap, case):
    heap.ours()
    status, out, err = heap.start([build("errors"), case], 120, heap.environment())
    assert status == -signal.SIGABRT, f"{status}, not SIGABRT: {out} {err}"
    assert re.search("^pointer (.*)", out, re.M)[1] in err


@pytest.mark.parametrize("case", CASES["headers"].split())
def test_wrong_free_of_lines(heap, case):
    check(heap, case, MAYFLY_HEAP_SPANS="lines")


def check(heap, case, **variables):
    heap.ours()
    status, out, err = heap.start([build("errors"), case], 120, heap.environment(**variables))
    assert status == -signal.SIGABRT, f"{status}, not SIGABRT: {out} {err}"
    assert re.fullmatch("mayfly-heap:.*\n?", err), f"not exactly one line `mayfly-heap: ...` on stderr: {err}"
    pointer = int(re.search("^pointer (.*)", out, re.M)[1], 16)
    first, end = (int(word, 16) for word in re.search("^text (.*)", out, re.M)[1].split())
    named = [int(word, 16) for word in re.findall("0x([0-9a-fA-F]+)", err)]
    assert pointer in named, f"does not name the pointer {pointer:#x}: {err}"
    symbol = re.search(r"wrong_free|free_in_thread|\bmain\b", err)
    assert symbol or any(first <= n < end for n in named), f"no caller (in {first:#x}..{end:#x}): {err}"
    if re.match("double-(small|medium)|interior", case):
        assert re.search(r"\d\s*(B|bytes?|KiB|MiB)\b|size", err), f"does not say the size: {err}"
