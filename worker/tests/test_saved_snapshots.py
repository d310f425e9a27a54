"""Snapshots outlive the worker with `--state`: the next one restores from them, if all is as it was."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import tempfile

import pytest
from calls import PYTHON, create, invoke, one_function, until, zipped
from conftest import Worker

CODE = """
import os, random, threading, time, uuid
STARTED, TABLE = uuid.uuid4().hex, {n: str(n) for n in range(20_000)}
open("/tmp/kept", "w").write("of the import")
ticks = []
threading.Thread(target=lambda: [ticks.append(time.sleep(0.01)) for _ in iter(int, 1)], daemon=True).start()
def handler(event, context):
    before = len(ticks)
    time.sleep(0.3)
    return {"started": STARTED, "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"], "sum": len(TABLE),
            "random": random.getrandbits(64), "stream": context.log_stream_name, "ticks": len(ticks) > before,
            "tmp": open("/tmp/kept").read()}
"""


@pytest.fixture
def place():
    # On the disk of the tests themselves: snapshots are saved there alone, and /tmp may be memory.
    with tempfile.TemporaryDirectory(dir=pathlib.Path(__file__).parent / "build") as folder:
        place = pathlib.Path(folder)
        (place / "code").mkdir()
        (place / "code/app.py").write_text(CODE)
        one_function(place, "kept", PYTHON)
        yield place


def worker(place, *templates):
    return Worker(*map(str, templates), "--state", str(place / "state"), "--burst", "4", "--memory", "1000")


def call(running, name="kept", **arguments):
    answer, error = invoke(running.client(), name, **arguments)
    assert error is None, answer
    assert answer["sum"] == 20_000 and answer["ticks"] and answer["tmp"] == "of the import", answer
    return answer


def restored(running, name="kept", **arguments):
    """An answer of a restored instance. Those that have started serve as long as they are enough."""
    running.wait_for(rf"\[{name}\] has a snapshot")

    def found():
        with concurrent.futures.ThreadPoolExecutor(4) as callers:
            answers = callers.map(lambda _: call(running, name, **arguments), range(4))
            return next((answer for answer in answers if answer["type"] == "snap-start"), None)

    return until(found)


def saved(place, ending):
    """The file of the one saved snapshot, in a list, once it is there."""
    return until(lambda: list((place / "state/snapshots").glob(f"*.{ending}")))


def save_one(place):
    """A worker saves the function's snapshot, and is killed; its first answer, of a started instance."""
    with worker(place, place / "template.yaml") as running:
        answer = call(running)
        assert answer["type"] == "on-demand"
        saved(place, "about")
        running.stop(signal.SIGKILL)
    return answer


def test_the_next_worker_restores_from_the_first_call_on(place):
    started = save_one(place)
    answers = []
    for _ in range(2):
        with worker(place, place / "template.yaml") as running:
            answers.append(call(running))
            assert running.wait_for(r"\[kept\] has the snapshot of before \(\d+ MiB, \d+ mappings\)")
            assert "has a snapshot, from which" not in running.log(), "none is taken anew"
    assert [answer["type"] for answer in answers] == ["snap-start"] * 2
    assert len({answer["started"] for answer in answers} | {started["started"]}) == 2
    assert len({answer["random"] for answer in [*answers, started]}) == 3
    assert len({answer["stream"] for answer in [*answers, started]}) == 3


def test_a_published_version_is_active_at_once_with_its_saved_snapshot(place):
    with worker(place) as running:
        client = running.client()
        create(client, "published", zipped(app_py=CODE), SnapStart={"ApplyOn": "PublishedVersions"})
        client.publish_version(FunctionName="published")
        first = restored(running, "published", Qualifier="1")
        saved(place, "about")
    with worker(place) as running:
        client = running.client()
        answer = call(running, "published", Qualifier="1")
        assert (answer["type"], answer["started"]) == ("snap-start", first["started"])
        client.delete_function(FunctionName="published")
        until(lambda: not list((place / "state/snapshots").iterdir()))


def changed_code(place):
    app = place / "code/app.py"
    app.write_text(app.read_text() + "\n# another\n")


def changed_settings(place):
    one_function(place, "kept", PYTHON, MemorySize=300)


def flipped(ending):
    def flip(place):
        (file,) = saved(place, ending)
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            byte = opened.read(1)
            opened.seek(-1, os.SEEK_CUR)
            opened.write(bytes([byte[0] ^ 1]))

    return flip


def cut(ending):
    def shorten(place):
        (file,) = saved(place, ending)
        os.truncate(file, file.stat().st_size // 2)

    return shorten


def missing(ending):
    return lambda place: saved(place, ending)[0].unlink()


@pytest.mark.parametrize(
    "change, line",
    {
        "code": (changed_code, "code, settings, packages or the worker have changed"),
        "settings": (changed_settings, "code, settings, packages or the worker have changed"),
        "description flipped": (flipped("about"), "it is broken: its description differs from its digest"),
        "description cut": (cut("about"), "it is broken: its description differs from its digest"),
        "pages flipped": (flipped("pages"), "it is broken: its pages differ from their digest"),
        "pages cut": (cut("pages"), "it is broken: its pages differ from their digest"),
        "pages missing": (missing("pages"), "it is broken: .*pages is missing"),
        "program flipped": (flipped("program"), "it is broken: its program differ from their digest"),
        "program missing": (missing("program"), "it is broken: .*program is missing"),
    }.values(),
)
def test_one_that_does_not_fit_is_named_and_not_used(place, change, line):
    first = save_one(place)
    change(place)
    with worker(place, place / "template.yaml") as running:
        answer = call(running)
        assert answer["type"] == "on-demand" and answer["started"] != first["started"]
        running.wait_for(rf"\[kept\] starts as ever: its snapshot of before is of no use: {line}")
        # The next one takes its place.
        again = restored(running)
        assert again["started"] not in (first["started"], answer["started"])


def test_half_of_a_snapshot_that_a_killed_worker_has_left_is_none(place):
    save_one(place)
    (about,) = saved(place, "about")
    about.rename(about.with_suffix(".new"))
    with worker(place, place / "template.yaml") as running:
        assert call(running)["type"] == "on-demand"
        saved(place, "about")
        assert "of no use" not in running.log()
    assert not list(pathlib.Path(place / "state/snapshots").glob("*.new"))


def test_a_library_of_the_code_is_another(place):
    """The function has mapped it: its contents count, and not that it was copied anew."""
    library = "/lib/x86_64-linux-gnu/libbz2.so.1.0"
    if not pathlib.Path(library).exists():
        pytest.skip(f"this host has no {library}")
    copy = place / "code/mapped.so"
    shutil.copy(library, copy)
    app = place / "code/app.py"
    app.write_text("import ctypes\nctypes.CDLL('/var/task/mapped.so')\n" + app.read_text())
    first = save_one(place)
    copy.unlink()
    shutil.copy(library, copy)
    with worker(place, place / "template.yaml") as running:
        answer = call(running)
        assert answer["type"] == "snap-start" and answer["started"] != first["started"]
