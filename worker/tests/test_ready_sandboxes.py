"""Empty sandboxes that are made before an instance needs one."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest
from calls import PYTHON, create, in_shell, invoke, until, zipped
from conftest import TEMPLATE, Worker, cgroups_of, is_alive

MOST = 2
TAKEN = "ready sandbox"
CODE = """
import os
STARTED = os.urandom(8).hex()
def handler(event, context):
    return {"code": open("/var/task/mark").read(), "stream": context.log_stream_name, "user": os.getuid(),
            "started": STARTED, "memory": open("/proc/meminfo").readline().split()[1],
            "tmp": os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize >> 20,
            "left": os.listdir("/tmp"), "host": os.uname().nodename,
            "written": open("/tmp/mine", "w").write("x"), "variable": os.environ.get("MINE")}
"""


def wait_until_ready(worker, most=MOST):
    return until(lambda: len(found := worker.ready_sandboxes()) == 2 * most and found, worker.state)


def steps_of(worker):
    """The names of each start's steps."""
    starts = worker.events("ready") + worker.events("restored")
    return [[name for name, _ in event["steps"]] for event in sorted(starts, key=lambda one: one["seq"])]


def without_instances(worker):
    until(lambda: not json.loads(worker.get("/instances"))["instances"], worker.state)


@pytest.fixture(scope="module")
def ready():
    with Worker("--keep-alive", "1") as running:
        wait_until_ready(running)
        yield running


def test_cold_start_takes_a_ready_sandbox_which_ends_with_its_instance(ready):
    client, before = ready.client(), wait_until_ready(ready)
    create(client, "taking", zipped(app_py=CODE, mark="1"), MemorySize=256)
    first, error = invoke(client, "taking")
    assert error is None, first
    assert steps_of(ready)[-1][:3] == ["disk", TAKEN, "limits"], steps_of(ready)
    taken = [process for process in before if process not in ready.ready_sandboxes()]
    assert len(taken) == 2, "a monitor and a process 1"
    without_instances(ready)
    assert not any(map(is_alive, taken)), "none that was used is there again"
    after = wait_until_ready(ready)
    assert len(set(before) & set(after)) == 2 * (MOST - 1)
    second, _ = invoke(client, "taking")
    assert second["left"] == [] and "mine" not in first["left"]
    for name in ("stream", "user", "started", "host"):
        assert first[name] != second[name], name


def test_any_function_takes_one_and_finds_its_own_code_and_limits(ready):
    client = ready.client()
    create(client, "small", zipped(app_py=CODE, mark="small"), MemorySize=128)
    settings = {
        "MemorySize": 640,
        "EphemeralStorage": {"Size": 700},
        "Environment": {"Variables": {"MINE": "1"}},
    }
    create(client, "large", zipped(app_py=CODE, mark="large"), **settings)
    without_instances(ready)
    wait_until_ready(ready)
    small, large = invoke(client, "small")[0], invoke(client, "large")[0]
    assert all(TAKEN in steps for steps in steps_of(ready)[-2:]), steps_of(ready)
    assert (small["code"], small["memory"], small["variable"]) == ("small", str(128 << 10), None)
    assert (large["code"], large["memory"], large["variable"]) == ("large", str(640 << 10), "1")
    assert small["tmp"] < 600 < large["tmp"]

    def limits():
        """Of both, which end soon where they have no work."""
        invoke(client, "small"), invoke(client, "large")
        found = set()
        for folder in map(pathlib.Path, cgroups_of(ready.process.pid)):
            for name in ("memory.limit_in_bytes", "memory.max"):
                for file in folder.glob(f"ready-*/{name}"):
                    with contextlib.suppress(OSError):
                        found.add(file.read_text().strip())
        return found

    until(lambda: {str(128 << 20), str(640 << 20)} <= limits(), limits)


def test_changed_function_has_its_new_code_in_a_sandbox_that_was_ready_before(ready):
    client = ready.client()
    create(client, "changed", zipped(app_py=CODE, mark="old"), MemorySize=128)
    assert invoke(client, "changed")[0]["code"] == "old"
    wait_until_ready(ready)
    client.update_function_code(FunctionName="changed", ZipFile=zipped(app_py=CODE, mark="new"))
    assert invoke(client, "changed")[0]["code"] == "new"
    assert TAKEN in steps_of(ready)[-1]
    client.delete_function(FunctionName="changed")
    without_instances(ready)
    own = os.readlink(f"/proc/{ready.process.pid}/ns/mnt")
    for process in wait_until_ready(ready):
        # They have no mount of their own yet, so none of a function's, and keep none of the host's in use.
        assert os.readlink(f"/proc/{process}/ns/mnt") == own
        assert os.stat(f"/proc/{process}").st_uid == 0 or os.geteuid() != 0


def test_metrics_and_page_tell_of_them(ready):
    wait_until_ready(ready)
    until(lambda: ready.figure("mayfly_ready_sandboxes") == MOST, ready.state)
    assert 1 << 16 < ready.figure("mayfly_ready_sandbox_bytes") < MOST * 32 << 20
    assert "2 sandboxes ready" in ready.get("/")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_file_system_that_is_mounted_meanwhile_is_seen_and_may_be_unmounted(ready, tmp_path_factory):
    place = tmp_path_factory.mktemp("mounted")
    for folder in (place, *place.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    with Worker("--code-from", str(place), "--keep-alive", "1") as running:
        wait_until_ready(running)
        subprocess.run(["mount", "-t", "tmpfs", "of-a-test", str(place)], check=True)
        try:
            (place / "app.py").write_text(CODE)
            (place / "mark").write_text("mounted")
            code = {"S3Bucket": "folder", "S3Key": str(place)}
            role = "arn:aws:iam::000000000000:role/r"
            running.client().create_function(
                FunctionName="mounted",
                Runtime=PYTHON,
                Role=role,
                Code=code,
                Handler="app.handler",
            )
            answer, error = invoke(running.client(), "mounted")
            assert (answer["code"], error) == ("mounted", None), answer
            assert TAKEN in steps_of(running)[-1]
            running.client().delete_function(FunctionName="mounted")
            without_instances(running)
        finally:
            subprocess.run(["umount", str(place)], check=True)
        for process in running.ready_sandboxes():
            assert "of-a-test" not in pathlib.Path(f"/proc/{process}/mounts").read_text()


def test_function_starts_where_ready_sandboxes_were_killed(ready):
    client = ready.client()
    create(client, "killed", zipped(app_py=CODE, mark="1"), MemorySize=128)
    without_instances(ready)
    for process in wait_until_ready(ready):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert invoke(client, "killed")[1] is None
    wait_until_ready(ready)
    # One of them may have been taken before the worker had noticed.
    assert ready.log().count("an empty sandbox has ended by itself") in (MOST - 1, MOST)


def test_killed_worker_leaves_none():
    with Worker() as running:
        below = wait_until_ready(running)
        running.stop(signal.SIGKILL)
        until(lambda: not any(map(is_alive, below)), "processes are left")
        Worker().stop()
        assert not cgroups_of(running.process.pid), "the next worker removes them"


def test_worker_that_ends_leaves_none():
    with Worker() as running:
        below = wait_until_ready(running)
        assert running.stop(signal.SIGTERM) == 0
        assert not any(map(is_alive, below))
        assert not cgroups_of(running.process.pid)
        assert "cannot remove" not in running.last_log


def test_as_many_as_start_at_once_and_none_where_they_are_left_out():
    with Worker(TEMPLATE, "--without", "ready") as without, Worker("--burst", "1") as one:
        wait_until_ready(one, 1)
        assert in_shell(without.client(), "true")["code"] == 0
        assert without.ready_sandboxes() == [] and without.figure("mayfly_ready_sandboxes") == 0
        assert steps_of(without)[-1][:3] == ["disk", "monitor runs", "order read"], steps_of(without)
        assert len(one.ready_sandboxes()) == 2
