"""Images that start Lambda's own client for Python rest, and share pages, as other functions in Python do."""

from calls import EXTENSION, PYTHON, invoke, until
from images import Image, create_image, layer, python_layers
from test_memory_layers import several

APP = b"""
import os, random, time

HELD = []

def table(mib):
    return random.Random(mib).randbytes(mib << 20)

def handler(event, context):
    if "hold" in event:
        HELD.append(bytearray(table(event["hold"])))
        time.sleep(4)
    # Writes bytes of its own, and checks that all others are unchanged.
    own = os.urandom(8)
    for each in HELD:
        each[:8] = own
    time.sleep(0.5)
    return {
        "right": [each[:8] == own and each[8:] == table(len(each) >> 20)[8:] for each in HELD],
        "store": sorted(os.listdir("/dev/mayfly/store")),
        "writable": os.access("/dev/mayfly/store", os.W_OK),
    }
"""
CTYPES = f"usr/lib/{PYTHON}/lib-dynload/.wh._ctypes.{EXTENSION}-x86_64-linux-gnu.so"


def image(path, *more):
    app = layer(("var/task/app.py", APP))
    entry = [f"/usr/bin/{PYTHON}", "-m", "awslambdaric"]
    settings = {"Entrypoint": entry, "Cmd": ["app.handler"], "WorkingDir": "/var/task"}
    return Image(*python_layers(), app, *more, Env=["PYTHONPATH=/var/runtime"], **settings).archive(path)


def merged(running, name):
    return {event["instance"] for event in running.events("merge") if event["function"] == name}


def test_idle_image_instances_share_pages_within_their_function(running, place):
    client = running.client()
    uri = image(place / "python.tar")
    for name, count in [("one", 2), ("other", 1)]:
        create_image(client, name, uri)
        answers = several(client, name, {"hold": 25}, count)
        assert [error for _, error in answers] == [None] * count, answers
        until(lambda name=name, count=count: len(merged(running, name)) == count, running.log)

    def shared():
        one = running.sample()["functions"]["one"]
        # Two tables of 25 MiB, of which whole pages are shared, and one of them in the store.
        return one["mapped_shared_bytes"] > 2 * 24 << 20 and one["pss_bytes"] < 3 * 24 << 20

    until(shared, lambda: running.sample())
    # The other function's equal bytes are in a store of its own.
    until(lambda: running.sample()["store"]["bytes"] > 2 * 24 << 20, lambda: running.get("/events"))
    assert running.sample()["store"]["stores"] == len(running.stores()) == 2
    assert running.sample()["functions"]["one"]["heap_live_bytes"] > 3 << 20
    # Shared contents are unchanged, in the same processes.
    for answer, error in several(client, "one", {}, 2):
        assert error is None and answer["right"] == [True], answer
        assert answer["store"] == ["share.lock", "share.socket"] and not answer["writable"]
    for name in ["one", "other"]:
        client.delete_function(FunctionName=name)
    until(lambda: not running.stores(), running.state)


def test_image_without_loadable_libraries_runs_without_resting(running, place):
    client = running.client()
    create_image(client, "bare", image(place / "bare.tar", layer(CTYPES)))
    first, error = invoke(client, "bare", {"hold": 1})
    assert error is None, first
    running.wait_for("mayfly: this instance does not rest: No module named '_ctypes'")
    for _ in range(2):
        again, error = invoke(client, "bare", {})
        assert error is None and again["right"] == [True], again
    assert not merged(running, "bare")
    client.delete_function(FunctionName="bare")
