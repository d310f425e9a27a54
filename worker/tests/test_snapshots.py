"""SnapStart: instances that are restored from the memory of one that has started."""

import base64
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal

import botocore.exceptions
import pytest
from calls import PYTHON, create, invoke, killing, one_function, until, zipped
from conftest import MAYFLY, Worker

ALL = 16
CODE = """
import asyncio, hashlib, mmap, os, random, secrets, socket, ssl, sys, threading, time, uuid
LOOP = asyncio.new_event_loop()
STARTED = uuid.uuid4().hex
TABLE = {str(n): [n] for n in range(20_000)}
BLOCK = bytearray(b"x" * (8 << 20))
EMPTIED = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
EMPTIED[:] = b"y" * len(EMPTIED)
answers, asked = [], threading.Semaphore(0)
def answer():
    while asked.acquire():
        answers.append(threading.get_ident())
thread = threading.Thread(target=answer, daemon=True)
thread.start()
os.makedirs("/tmp/folder/below")
written = open("/tmp/folder/below/file", "w+")
written.write("as imported ")
written.flush()
seen = mmap.mmap(os.open("/tmp/folder/below/file", os.O_RDWR), 0)
print("imported")

def unique():
    return [random.random(), random.getrandbits(64), uuid.uuid4().hex, uuid.uuid1().hex,
            secrets.token_hex(16), os.urandom(16).hex(), ssl.RAND_bytes(16).hex(),
            os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]]

def is_line(number):
    try:
        with socket.socket(fileno=os.dup(number)) as found:
            return found.family == socket.AF_UNIX
    except OSError:
        return False

def handler(event, context):
    event = event or {}
    first = unique()
    time.sleep(event.get("seconds", 0))
    EMPTIED.madvise(mmap.MADV_DONTNEED)
    BLOCK.extend(b"z" * (4 << 20))
    written.write("and after")
    written.flush()
    seen[0:2] = b"AS"
    asked.release()
    while not answers:
        time.sleep(0.001)
    # Its thread wakes the loop by a pair of sockets.
    assert LOOP.run_until_complete(LOOP.run_in_executor(None, lambda: 7)) == 7
    return {"started": STARTED, "unique": first, "sum": sum(value[0] for value in TABLE.values()),
            "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"], "number": event.get("number"),
            "emptied": bytes(EMPTIED[:4]).hex(), "block": [BLOCK.count(b"x"), BLOCK.count(b"z") >= 4 << 20],
            "stream": context.log_stream_name, "user": os.getuid(),
            "tmp": open("/tmp/folder/below/file").read(),
            "marked": "MAYFLY_SNAPSHOT" in os.environ, "line": is_line(9),
            "command": open("/proc/self/cmdline").read().split(chr(0))[1:3]}
"""
HAS_SNAPSHOT = r"\[%s\] has a snapshot"
SNAP_START = {"SnapStart": {"ApplyOn": "PublishedVersions"}, "Timeout": 60}


def started(worker, name):
    """Calls a function once, and waits until it has a snapshot."""
    first, error = invoke(worker.client(), name)
    assert error is None, first
    worker.wait_for(HAS_SNAPSHOT % name)
    return first


def at_once(client, name, count, **settings):
    with concurrent.futures.ThreadPoolExecutor(count) as executor:
        calls = [
            executor.submit(invoke, client, name, {"seconds": 1, "number": n}, **settings)
            for n in range(count)
        ]
        answers = [call.result() for call in calls]
    assert [error for _, error in answers] == [None] * count, answers
    return [answer for answer, _ in answers]


def at_once_until(found, client, name, count, **settings):
    """Calls at once, again and again until `found` is true of the answers: on a busy machine the instances
    that are there may serve all of them."""
    return until(lambda: found(answers := at_once(client, name, count, **settings)) and answers)


def is_restored(answer):
    return answer["type"] == "snap-start"


@pytest.fixture(scope="module")
def restoring(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    (folder / "code").mkdir()
    (folder / "code/app.py").write_text(CODE)
    template = one_function(folder, "restored", PYTHON, metadata={"Snapshot": True}, Timeout=60)
    with Worker(template, "--memory", "4000", "--burst", str(ALL)) as worker:
        worker.first = started(worker, "restored")
        yield worker


def test_restored_instances_share_state_and_differ_in_names_and_random_numbers(restoring):
    client = restoring.client(max_pool_connections=ALL)
    # The first one, which was started, may serve some.
    answers = at_once_until(
        lambda answers: sum(map(is_restored, answers)) >= ALL // 2, client, "restored", ALL
    )
    restored = [answer for answer in answers if is_restored(answer)]
    assert len({answer["started"] for answer in restored}) == 1
    assert restoring.first["started"] not in {answer["started"] for answer in restored}
    for answer in restored:
        assert answer["sum"] == sum(range(20_000)) and answer["block"] == [8 << 20, True]
        # Anonymous memory that is emptied is zero, although it is a mapping of the snapshot here.
        assert answer["emptied"] == "00000000"
        assert answer["stream"] in answer["unique"]
        assert answer["tmp"].startswith("AS imported and after")
        assert not answer["marked"] and not answer["line"]
        assert answer["command"] == restoring.first["command"]
    first_of = {answer["stream"]: answer for answer in reversed(restored)}.values()
    assert len({answer["user"] for answer in first_of}) == len(first_of)
    for source in zip(*(answer["unique"] for answer in first_of), strict=True):
        assert len(set(source)) == len(source), source


def test_started_instance_ends_without_losing_a_request_once_a_restored_one_serves(restoring):
    client = restoring.client(max_pool_connections=ALL)
    at_once_until(lambda answers: all(map(is_restored, answers)), client, "restored", ALL)
    started_ones = {event["instance"] for event in restoring.events("ready", function="restored")}
    alive = {one["id"] for one in json.loads(restoring.get("/instances"))["instances"]}
    assert started_ones and not started_ones & alive


def test_report_has_the_time_of_the_restore_and_not_of_a_start(restoring):
    client = restoring.client(max_pool_connections=ALL)

    def report(_):
        try:
            answer = client.invoke(FunctionName="restored", LogType="Tail", Payload=b'{"seconds": 1}')
        except client.exceptions.ClientError:
            return ""  # its instance was killed
        return base64.b64decode(answer.get("LogResult", "")).decode()

    def reports():
        # Those that are there would serve the calls.
        for process in restoring.descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with concurrent.futures.ThreadPoolExecutor(4) as executor:
            return [text for text in executor.map(report, range(4)) if "Restore Duration" in text]

    lines = until(reports)
    found = re.search(
        r"Duration: ([\d.]+) ms\tBilled Duration: (\d+) ms.*\tRestore Duration: ([\d.]+) ms\t"
        r"Billed Restore Duration: (\d+) ms",
        lines[0],
    )
    duration, billed, restore, billed_restore = map(float, found.groups())
    assert "Init Duration" not in lines[0]
    assert duration <= billed < duration + 1.01 and restore <= billed_restore < restore + 1.01


def test_killed_instances_are_restored_again(restoring):
    requests = 5000 if os.environ.get("MAYFLY_SOAK") else 200
    client, outcomes = restoring.client(max_pool_connections=8), []

    def call(number):
        try:
            answer, error = invoke(client, "restored", {"number": number})
            right = (answer.get("number"), answer.get("sum")) == (number, sum(range(20_000)))
            outcomes.append("answered" if right else error or answer)
        except client.exceptions.ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    with (
        killing(restoring.descendants, lambda: len(outcomes), 10, seed=7) as killed,
        concurrent.futures.ThreadPoolExecutor(8) as executor,
    ):
        list(executor.map(call, range(requests)))
    assert len(killed) >= 5, "the test kills something"
    assert set(outcomes) <= {"answered", "Unhandled", "ServiceException"}, outcomes
    assert outcomes.count("answered") > requests / 2
    # The last kill may have hit the instance that is given this one.
    until(lambda: invoke(client, "restored", {"number": 1})[0].get("number") == 1)


def test_published_versions_have_it_and_latest_has_not(running):
    client = running.client()
    made = create(client, "published", zipped(app_py=CODE), MemorySize=128, **SNAP_START)
    assert made["SnapStart"] == {"ApplyOn": "PublishedVersions", "OptimizationStatus": "Off"}
    version = client.publish_version(FunctionName="published")
    assert version["SnapStart"]["ApplyOn"] == "PublishedVersions"
    assert (version["State"], version["StateReasonCode"]) == ("Pending", "Creating")
    # The waiter of AWS' own client.
    client.get_waiter("published_version_active").wait(
        FunctionName="published", Qualifier="1", WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    version = client.get_function_configuration(FunctionName="published", Qualifier="1")
    assert version["SnapStart"] == {"ApplyOn": "PublishedVersions", "OptimizationStatus": "On"}
    assert version["State"] == "Active" and re.search(HAS_SNAPSHOT % "published", running.log())
    # Even the first instance of the version is restored.
    first, _ = invoke(client, "published", Qualifier="1")
    assert first["type"] == "snap-start"
    latest = client.get_function_configuration(FunctionName="published")
    assert latest["SnapStart"]["OptimizationStatus"] == "Off"
    assert {answer["type"] for answer in at_once(client, "published", 3)} == {"on-demand"}


HOOKS = """
import os, snapshot_restore_py as hooks
seen = []
hooks.register_before_snapshot(seen.append, "before")
@hooks.register_after_restore
def after():
    seen.append("after in " + os.environ["AWS_LAMBDA_LOG_STREAM_NAME"])
def handler(event, context):
    import time
    time.sleep(event.get("seconds", 0) if event else 0)
    return {"seen": seen, "stream": context.log_stream_name}
"""


def test_hooks_of_lambdas_library_run(running):
    client = running.client()
    create(client, "hooks", zipped(app_py=HOOKS), MemorySize=128, **SNAP_START)
    client.publish_version(FunctionName="hooks")
    running.wait_for(HAS_SNAPSHOT % "hooks")
    seen = lambda answers: [answer for answer in answers if answer["seen"]]  # noqa: E731
    for answer in seen(at_once_until(seen, client, "hooks", 3, Qualifier="1")):
        assert answer["seen"] == ["before", "after in " + answer["stream"]]


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("socket", "import socket\ns = socket.socket()", "the open file .* cannot be restored"),
        (
            "links",
            "import os\nopen('/tmp/a', 'w')\nos.link('/tmp/a', '/tmp/b')",
            "RegularFile.* cannot be restored",
        ),
        ("child", "import subprocess\np = subprocess.Popen(['sleep', '60'])", "more than one process"),
        ("shared", "import mmap\nm = mmap.mmap(-1, 4096)\nm[0] = 1", "shared memory .* cannot be restored"),
        (
            "hook",
            "import snapshot_restore_py as h\nh.register_before_snapshot(lambda: 1 / 0)",
            "division by zero",
        ),
    ],
)
def test_unsupported_state_has_the_function_start_as_ever(running, name, code, why):
    client = running.client()
    create(client, name, zipped(app_py=f"{code}\ndef handler(event, context): return 'served'"), **SNAP_START)
    client.publish_version(FunctionName=name)
    assert invoke(client, name, Qualifier="1") == ("served", None)
    running.wait_for(rf"\[{name}\] starts as ever, without a snapshot: .*{why}")
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        answers = list(executor.map(lambda _: invoke(client, name, Qualifier="1"), range(3)))
    assert answers == [("served", None)] * 3


def test_failing_hook_after_the_restore_starts_instances_as_ever(running):
    code = HOOKS.replace('seen.append("after in "', "1 / 0\n    seen.append('after in '")
    client = running.client()
    create(client, "unrestorable", zipped(app_py=code), MemorySize=128, **SNAP_START)
    client.publish_version(FunctionName="unrestorable")
    why = "it was not restored: division by zero"
    running.wait_for(rf"\[unrestorable\] starts as ever, without a snapshot: {why}")
    answers = at_once(client, "unrestorable", 3, Qualifier="1")
    assert {tuple(answer["seen"]) for answer in answers} == {()}


def test_snap_start_applies_to_published_versions_alone(running):
    with pytest.raises(botocore.exceptions.ClientError, match="SnapStart.ApplyOn"):
        create(running.client(), "other", zipped(app_py=CODE), SnapStart={"ApplyOn": "Always"})


BY_DEFAULT = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: { Runtime: %s, Handler: app.handler, Timeout: 60 }
Resources:
  Usual:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: usual, CodeUri: usual }
  Started:
    Type: AWS::Serverless::Function
    Metadata: { Mayfly: { Snapshot: off } }
    Properties: { FunctionName: started, CodeUri: usual }
  Connected:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: connected, CodeUri: connected }
"""
LARGE_MIB = 24
USUAL = f"""
import os, random, time
LARGE = random.Random(1).randbytes({LARGE_MIB} << 20)
def handler(event, context):
    time.sleep((event or {{}}).get("seconds", 0))
    return {{"type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"], "bytes": len(LARGE)}}
"""


@pytest.fixture(scope="module")
def by_default(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by-default")
    for name, code in (("usual", USUAL), ("connected", "import socket\ns = socket.socket()\n" + USUAL)):
        (folder / name).mkdir()
        (folder / name / "app.py").write_text(code)
    (folder / "template.yaml").write_text(BY_DEFAULT % PYTHON)
    with Worker(str(folder / "template.yaml"), "--burst", "8") as worker:
        worker.template = str(folder / "template.yaml")
        yield worker


def test_functions_of_templates_are_restored_by_default(by_default):
    client = by_default.client(max_pool_connections=4)
    for name in ("usual", "started", "connected"):
        first, error = invoke(client, name)
        assert error is None and first["type"] == "on-demand", first
    by_default.wait_for(HAS_SNAPSHOT % "usual")
    by_default.wait_for(r"\[connected\] starts as ever, without a snapshot: .*open file")
    at_once_until(lambda answers: any(map(is_restored, answers)), client, "usual", 4)
    restored = [event for event in by_default.events("restored") if event["function"] == "usual"]
    assert restored and all(event["ms"] > 0 for event in restored)
    metrics = by_default.get("/metrics")
    counted = re.search(r"^mayfly_restore_seconds_count (\d+)$", metrics, re.MULTILINE)
    assert int(counted[1]) >= len(restored)
    for name in ("started", "connected"):
        assert {answer["type"] for answer in at_once(client, name, 3)} == {"on-demand"}
    assert not by_default.events("restored", function="started")
    assert "[started] has a snapshot" not in by_default.log()


def test_instance_that_was_started_shares_the_pages_of_the_snapshot(by_default):
    # With one instance, whose pages and the snapshot's are one.
    with Worker(by_default.template) as alone:
        assert invoke(alone.client(), "usual")[0]["bytes"] == LARGE_MIB << 20
        alone.wait_for(HAS_SNAPSHOT % "usual")

        def all_mib():
            (instance,) = json.loads(alone.get("/instances"))["instances"]
            store = json.loads(alone.get("/history"))["samples"][-1]["store"]["bytes"]
            return instance["pss_bytes"] + max(0, store - instance["shared_bytes"]) >> 20

        until(lambda: all_mib() < 2 * LARGE_MIB, all_mib, 120)
        assert invoke(alone.client(), "usual")[0]["type"] == "on-demand"


def test_worker_that_ends_while_a_snapshot_is_taken_leaves_nothing(by_default):
    def cgroups(below=""):
        # Others come and go while they are listed.
        with contextlib.suppress(FileNotFoundError):
            pattern = f"mayfly-worker-{alone.process.pid}-*{below}"
            return list(pathlib.Path("/sys/fs/cgroup").rglob(pattern))

    with Worker(by_default.template) as alone:
        invoke(alone.client(), "usual")
        # The instance that is to be taken.
        until(lambda: cgroups("/instance-0"), alone.log)
    left = until(lambda: [found for found in [cgroups()] if found is not None])
    assert left == [[]]


def test_deleted_function_leaves_no_snapshot():
    with Worker() as alone:
        client, descriptors = alone.client(), pathlib.Path(f"/proc/{alone.process.pid}/fd")

        def snapshots():
            links = []
            for entry in descriptors.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    links.append(os.readlink(entry))
            return sum("mayfly-snapshot" in link for link in links)

        create(client, "gone", zipped(app_py=CODE), MemorySize=128, **SNAP_START)
        client.publish_version(FunctionName="gone")
        invoke(client, "gone", Qualifier="1")
        alone.wait_for(HAS_SNAPSHOT % "gone")
        until(lambda: snapshots() >= 2, snapshots, 30)  # the program and the pages
        client.delete_function(FunctionName="gone")
        until(lambda: snapshots() == 0, snapshots, 30)


def test_worker_without_the_right_to_trace_serves_as_ever_and_says_so_once():
    with Worker(before=["setpriv", "--bounding-set=-sys_ptrace", MAYFLY]) as untraced:
        client = untraced.client()
        for name in ["untraced", "other"]:
            create(client, name, zipped(app_py=CODE), MemorySize=128, **SNAP_START)
            client.publish_version(FunctionName=name)
            assert not any(map(is_restored, at_once(client, name, 3, Qualifier="1")))
        # Their memory is read as their users.
        until(lambda: untraced.figure("mayfly_instance_pss_bytes") > 32 << 20, untraced.state, 30)
        log = untraced.log()
    assert log.count("functions start as ever: snapshots (SnapStart) need CAP_SYS_PTRACE") == 1
    assert "snapshot" not in log.replace("snapshots (SnapStart)", "")
