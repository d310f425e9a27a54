"""Restored instances prepare the pages that the first answer after a restore has touched."""

import concurrent.futures
import json
import pathlib
import signal
import tempfile

import pytest
from calls import PYTHON, invoke, one_function, until
from conftest import Worker

# Pages of a block that each first answer writes, every second one, and no other code.
PAGES = 64
CODE = f"""
import array, ctypes, os, time
BLOCK = bytearray(b"x" * {2 * PAGES * 4096})
FIRST = ctypes.addressof(ctypes.c_char.from_buffer(BLOCK)) // 4096 + 1
answered = []
def own_pages():
    with open("/proc/self/pagemap", "rb") as page_map:
        page_map.seek(8 * FIRST)
        entries = array.array("Q", page_map.read(8 * {2 * PAGES - 2}))
    return sum(entry >> 63 and not entry >> 61 & 1 for entry in entries)
def handler(event, context):
    is_first, own = not answered, own_pages()
    answered.append(time.monotonic())
    # The thread that prepares them may not have had a processor yet.
    while is_first and event["waits"] and own < {PAGES - 2} and time.monotonic() - answered[0] < 20:
        time.sleep(0.01)
        own = own_pages()
    for page in range(0, len(BLOCK), 8192):
        BLOCK[page] += 1
    time.sleep(0.3)
    return {{"first": is_first, "own": own, "x": BLOCK.count(b"x"), "more": BLOCK[0] - ord("x"),
            "answers": len(answered),
            "restored": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"] == "snap-start"}}
"""
READY = r"\[prepares\] has a snapshot"
RECORDED = r"\[prepares\] restored instances prepare (\d+) KiB ahead"


@pytest.fixture
def place():
    # On the disk of the tests themselves: snapshots are saved there alone, and /tmp may be memory.
    with tempfile.TemporaryDirectory(dir=pathlib.Path(__file__).parent / "build") as folder:
        place = pathlib.Path(folder)
        (place / "code").mkdir()
        (place / "code/app.py").write_text(CODE)
        one_function(place, "prepares", PYTHON, Timeout=60)
        yield place


def worker(place, *arguments):
    return Worker(str(place / "template.yaml"), "--burst", "4", "--memory", "1000", *arguments)


def call(running, waits):
    answer, error = invoke(running.client(), "prepares", {"waits": waits})
    assert error is None, answer
    # Prepared or not, each instance finds what it has written itself, and nothing else.
    assert answer["x"] == PAGES * 8192 - PAGES and answer["more"] == answer["answers"], answer
    return answer


def first_restored(running):
    """First answers of instances that were restored. Those that are there serve as long as they are
    enough."""

    def found():
        with concurrent.futures.ThreadPoolExecutor(4) as callers:
            answers = list(callers.map(lambda _: call(running, False), range(4)))
        return [answer for answer in answers if answer["restored"] and answer["first"]]

    return until(found)


def test_second_restored_instance_has_the_first_ones_pages_prepared(place):
    with worker(place, "--keep-alive", "1") as running:
        call(running, False)
        running.wait_for(READY)
        before = first_restored(running)
        recorded = int(running.wait_for(RECORDED).group(1))
        assert min(answer["own"] for answer in before) < PAGES // 2, before
        assert 4 * (PAGES - 2) <= recorded <= 8192, recorded
        until(lambda: not json.loads(running.get("/instances"))["instances"])
        after = call(running, True)
        # It has no more than that of its own: pages between them are the snapshot's still.
        assert after["restored"] and PAGES - 2 <= after["own"] <= PAGES + 8, after
        assert running.log().count("KiB ahead") == 1, "it is recorded once"


def test_next_worker_prepares_the_pages_that_the_one_before_recorded(place):
    state = place / "state"
    with worker(place, "--state", str(state)) as running:
        call(running, False)
        running.wait_for(READY)
        first_restored(running)
        running.wait_for(RECORDED)
        (touched,) = until(lambda: list((state / "snapshots").glob("*.touched")))
        running.stop(signal.SIGKILL)
    with worker(place, "--state", str(state)) as running:
        answer = call(running, True)
        assert answer["restored"] and answer["own"] >= PAGES - 2, answer
        assert "KiB ahead" not in running.log()
        running.stop(signal.SIGKILL)
    # A list that is none is recorded anew.
    touched.write_bytes(touched.read_bytes()[:-9])
    with worker(place, "--state", str(state)) as running:
        answer = call(running, False)
        assert answer["restored"] and answer["own"] < PAGES // 2, answer
        running.wait_for(RECORDED)
