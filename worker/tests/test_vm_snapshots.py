"""Snapshots of functions in VMs: the guest's agent takes them, and restores instances in partitions of their
own, which hold only what these write.
"""

import base64
import concurrent.futures
import json
import os
import re
import signal
import subprocess

import pytest
from calls import PATIENCE_S, PYTHON, invoke, one_function, open_folder, phases, until
from conftest import MAYFLY, Worker
from test_vm import PATIENT, qemu_of

MIB = 1 << 20
TABLE_MIB = 24
CODE = f"""
import json, mmap, os, random, signal, ssl, threading, time, uuid
STARTED = uuid.uuid4().hex
TABLE = os.urandom({TABLE_MIB} << 20)
SUM = sum(TABLE[::4096])
EMPTIED = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
EMPTIED[:] = b"y" * len(EMPTIED)
os.makedirs("/tmp/folder")
with open("/tmp/folder/file", "w") as file:
    file.write("as imported")

def unique():
    return [random.random(), uuid.uuid4().hex, os.urandom(16).hex(), ssl.RAND_bytes(16).hex(),
            os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]]

def is_of_snapshot(line):
    return "mayfly-snapshot" in line

def handler(event, context):
    event = event or {{}}
    first = unique()
    if event.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(event.get("seconds", 0))
    emptied = EMPTIED[:2].hex()
    EMPTIED.madvise(mmap.MADV_DONTNEED)
    with open("/proc/self/maps") as maps:
        mapped = sum(map(is_of_snapshot, maps))
    return {{"started": STARTED, "unique": first, "right": sum(TABLE[::4096]) == SUM,
            "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"], "emptied": [emptied, EMPTIED[:2].hex()],
            "stream": context.log_stream_name, "marked": "MAYFLY_SNAPSHOT" in os.environ,
            "tmp": open("/tmp/folder/file").read(), "user": os.getuid(), "mapped": mapped}}
"""
# A process of its own, which a snapshot would have to have.
FORKS = """
import subprocess
CHILD = subprocess.Popen(["sleep", "100000"])
def handler(event, context):
    return CHILD.poll()
"""


@pytest.fixture(scope="module")
def restoring(tmp_path_factory):
    subprocess.run(
        [MAYFLY, "vm", "image", "--kernel", "hotmem", "--linux", "7.3"], check=True, stdout=subprocess.DEVNULL
    )
    folder = open_folder(tmp_path_factory, "vm-snapshots")
    for name, code in [("code", CODE), ("forks", FORKS)]:
        (folder / name).mkdir()
        (folder / name / "app.py").write_text(code)
    template = one_function(folder, "restored", PYTHON, MemorySize=128, Timeout=120)
    written = json.loads((folder / "template.yaml").read_text())
    function = written["Resources"]["Function"]
    properties = {**function["Properties"], "FunctionName": "forks", "CodeUri": "forks"}
    written["Resources"]["Forks"] = {**function, "Properties": properties}
    (folder / "template.yaml").write_text(json.dumps(written))
    # Merging would move pages out of the partitions.
    options = ["--mode", "hotmem", "--partitions", "2", "--keep-alive", "3600", "--advise", "named"]
    with Worker(template, *PATIENT, *options) as worker:
        worker.first, error = invoke(worker.client(), "restored")
        assert error is None, worker.first
        # It wrote its table there; the guest reports that a moment later.
        until(lambda: min(used(worker).values()) > TABLE_MIB * MIB, worker.log)
        worker.wait_for(r"\[restored\] has a snapshot", PATIENCE_S)
        yield worker


def used(worker):
    """Memory in use in the partition of each instance of the function, by number."""

    def found():
        there = json.loads(worker.get("/instances"))["instances"]
        there = {one["id"]: one["pss_bytes"] for one in there if one["function"] == "restored"}
        return there if there and all(there.values()) else None

    worker.sample()  # so that the guest is asked
    return until(found, worker.log)


def restored_answers(worker, count):
    """The answers of so many restored instances at once."""
    client = worker.client()

    def answers():
        with concurrent.futures.ThreadPoolExecutor(count) as executor:
            calls = [executor.submit(invoke, client, "restored", {"seconds": 3}) for _ in range(count)]
            all_of = [call.result() for call in calls]
        assert {error for _, error in all_of} == {None}, all_of
        found = {answer["stream"]: answer for answer, _ in all_of if answer["type"] == "snap-start"}
        return list(found.values()) if len(found) == count else None

    return until(answers, worker.log)


def test_restored_instances_share_state_and_differ_in_random_numbers(restoring):
    assert restoring.first["type"] == "on-demand" and restoring.first["mapped"] == 0
    one, other = restored_answers(restoring, 2)
    assert one["started"] == other["started"] != restoring.first["started"]
    for answer in one, other:
        assert answer["right"] and answer["stream"] in answer["unique"]
        assert answer["mapped"] > 0 and not answer["marked"]
        # Anonymous memory that is emptied is zero, although it is a mapping of the snapshot here.
        assert answer["emptied"][1] == "0000"
        assert answer["tmp"] == "as imported"
    assert one["user"] != other["user"]
    for source in zip(one["unique"], other["unique"], strict=True):
        assert len(set(source)) == 2, source
    assert {event["kind"] for event in restoring.events("restored")} == {"restored"}


def test_partition_of_a_restored_instance_holds_its_own_writes_alone(restoring):
    restored_answers(restoring, 2)

    def is_small():
        now = used(restoring)
        restored = {event["instance"] for event in restoring.events("restored")}
        return set(now) <= restored and max(now.values()) < TABLE_MIB * MIB / 2 and now

    until(is_small, restoring.log)


def test_report_has_the_time_of_the_restore(restoring):
    client = restoring.client()

    def report():
        # Another is restored for the next call, once both that are there have ended.
        invoke(client, "restored", {"die": True})
        answer = client.invoke(FunctionName="restored", LogType="Tail", Payload=b"{}")
        text = base64.b64decode(answer["LogResult"]).decode()
        return text if "Restore Duration" in text else None

    text = until(report, restoring.log)
    assert re.search(r"\tRestore Duration: [\d.]+ ms\tBilled Restore Duration: \d+ ms", text)
    assert "Init Duration" not in text


def test_killed_instances_leave_nothing(restoring):
    client = restoring.client()
    unplugged = len(restoring.events("unplug"))
    answer, error = invoke(client, "restored", {"die": True})
    assert error == "Unhandled" and "signal: killed" in answer["errorMessage"], answer
    until(lambda: len(restoring.events("unplug")) > unplugged, restoring.log)
    answer, error = invoke(client, "restored")
    assert error is None and answer["right"] and answer["type"] == "snap-start", answer
    assert not restoring.events("fail"), restoring.events("fail")


def test_function_that_cannot_be_taken_starts_as_ever_with_one_line(restoring):
    client = restoring.client()
    assert invoke(client, "forks") == (None, None)
    line = r"\[forks\] starts as ever, without a snapshot: .*more than one process cannot be restored"
    restoring.wait_for(line, PATIENCE_S)
    assert invoke(client, "forks") == (None, None)
    assert len(re.findall(line, restoring.log())) == 1


def test_snapshot_goes_with_its_vm_and_is_taken_anew(restoring):
    client = restoring.client()
    before, error = invoke(client, "restored")
    assert error is None and before["type"] == "snap-start", before
    has_snapshot = r"\[restored\] has a snapshot"
    taken = len(re.findall(has_snapshot, restoring.log()))
    os.kill(qemu_of(restoring), signal.SIGKILL)
    until(lambda: any("ended" in event["message"] for event in restoring.events("vm")), restoring.log)
    until(lambda: not phases(restoring, "restored"), restoring.log)
    answer, error = invoke(client, "restored")
    assert error is None and answer["type"] == "on-demand" and answer["right"], answer
    assert "it was not restored: its snapshot has gone with its VM" in restoring.log()
    until(lambda: len(re.findall(has_snapshot, restoring.log())) > taken, restoring.log)
    one, other = restored_answers(restoring, 2)
    assert one["started"] == other["started"] not in (before["started"], answer["started"])


def test_deleted_functions_leave_every_partition_unplugged(restoring):
    """Runs last: it deletes the functions."""
    client = restoring.client()
    failed = len(restoring.events("fail"))
    assert invoke(client, "restored")[1] is None
    for name in ["restored", "forks"]:
        client.delete_function(FunctionName=name)
        until(lambda name=name: not phases(restoring, name), restoring.log)
    until(lambda: restoring.sample()["vm"]["plugged"] == 0, restoring.sample)
    assert len(restoring.events("fail")) == failed, restoring.events("fail")
