"""The worker freezes an instance without work, as Lambda does, and a frozen instance still ends."""

import contextlib
import os
import pathlib
import signal
import time

import pytest
from calls import at_work, invoke, until
from conftest import TEMPLATE, Worker, cgroups_of, descendants, is_alive

# Without these layers an instance does not rest, so nothing thaws it.
WITHOUT_REST = ["--without", "heap,merge"]


def holds_a_runtime(group, mayfly):
    """Whether a cgroup has processes of other programs than the worker's: an empty sandbox has none, neither
    when it is ready nor while it is prepared."""
    processes = (group / "cgroup.procs").read_text().split()
    return any(os.readlink(f"/proc/{process}/exe") != mayfly for process in processes)


def monitor(running):
    """The monitor of the instance, which is above its runtime; those of empty sandboxes are above none."""
    worker = running.process.pid
    mayfly = os.readlink(f"/proc/{worker}/exe")
    process = next(one for one in running.descendants() if os.readlink(f"/proc/{one}/exe") != mayfly)
    while (above := parent(process)) != worker:
        process = above
    return process


def parent(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def texts(running, *names):
    """Of each instance: the contents of its cgroups' files of these names. An instance may end meanwhile."""
    found, mayfly = [], os.readlink(f"/proc/{running.process.pid}/exe")
    for folder in map(pathlib.Path, cgroups_of(running.process.pid)):
        for group in [*folder.glob("instance-*"), *folder.glob("ready-*")]:
            with contextlib.suppress(OSError):
                if holds_a_runtime(group, mayfly):
                    found += [(group / name).read_text() for name in names if (group / name).exists()]
    return found


def states(running):
    """Of each instance: whether it is frozen."""
    found = texts(running, "freezer.state", "cgroup.events")
    return [text.strip() == "FROZEN" or "frozen 1" in text for text in found]


def shares(running):
    """Of each instance: its share of the processors."""
    return list(map(int, texts(running, "cpu.shares", "cpu.weight")))


def shares_at_work(running):
    """The same during a request: an idle instance may rest with a smaller share."""
    with at_work(running, "probe", {"do": "shell", "command": "sleep 3"}) as work:
        found = shares(running)
        assert work.result()[1] is None
    return found


def wait_until_frozen(running, instances=1):
    until(lambda: states(running) == [True] * instances, lambda: f"{states(running)} {running.state()}")


@pytest.fixture(scope="module", autouse=True)
def needs_a_freezer():
    # In version 1 the hierarchy's root has no freezer.state, so the mounts show whether there is a freezer.
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    is_version_one = any(kind == "cgroup" and "freezer" in how.split(",") for _, _, kind, how, *_ in mounts)
    if not is_version_one and not any(pathlib.Path("/sys/fs/cgroup").glob("*/cgroup.freeze")):
        pytest.skip("this host has no cgroup freezer")


def test_threads_are_frozen_between_requests():
    with Worker(TEMPLATE, *WITHOUT_REST) as running:
        client = running.client()
        assert invoke(client, "probe", {"do": "start_counting"})[1] is None
        wait_until_frozen(running)
        time.sleep(3)
        # It counts by the machine's clock: once it runs again, the frozen time is a gap.
        until(lambda: invoke(client, "probe", {"do": "counted"})[0]["longest_gap_s"] > 2.5)
        counted, error = invoke(client, "probe", {"do": "counted"})
        assert error is None and counted["count"] > 0, counted
        # It runs while there is work.
        seen, error = invoke(client, "probe", {"do": "counted", "seconds": 0.5})
        assert error is None and seen["count"] > counted["count"], (counted, seen)
        wait_until_frozen(running)
        assert running.stop(signal.SIGTERM) == 0, "frozen instances end with it"
        assert not cgroups_of(running.process.pid)


def test_instance_thaws_to_rest_with_a_reduced_cpu_share():
    # A snapshot is taken of an instance of its own, which has a reduced share from its start.
    with Worker(TEMPLATE, "--without", "snapshot") as running:
        # One that has served several requests, and is old, may rest at once, before it is frozen.
        whole = shares_at_work(running)
        assert whole
        # It rests with a part of its share, and is then frozen again.
        rests = [share // 8 for share in whole]
        until(lambda: shares(running) == rests, lambda: f"{whole} {shares(running)} {running.state()}")
        until(lambda: running.figure("mayfly_rests_total") >= 1)
        wait_until_frozen(running)
        assert shares_at_work(running) == whole, "a request restores the whole share"
        assert len(running.events("start")) == 1, "the same instance continues"


def test_frozen_instance_ends_with_its_killed_worker():
    with Worker(TEMPLATE, *WITHOUT_REST) as running:
        invoke(running.client(), "probe", {"do": "start_counting"})
        wait_until_frozen(running)
        below = descendants(running.process.pid)
        assert len(below) >= 3, "a monitor, process 1 and the runtime"
        running.stop(signal.SIGKILL)
        until(lambda: not [process for process in below if is_alive(process)])


def test_next_worker_ends_a_frozen_instance_without_monitor():
    with Worker(TEMPLATE, *WITHOUT_REST) as running:
        invoke(running.client(), "probe", {"do": "start_counting"})
        wait_until_frozen(running)
        below = descendants(running.process.pid)
        its_monitor = monitor(running)
        # So that it does not notice the end of the worker.
        os.kill(its_monitor, signal.SIGSTOP)
        running.stop(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # a worker of another test may be the next one
            os.kill(its_monitor, signal.SIGKILL)
        with Worker(*WITHOUT_REST):
            until(lambda: not [process for process in below if is_alive(process)])
            assert not cgroups_of(running.process.pid)


def test_instance_is_replaced_after_its_monitor_dies():
    with Worker(TEMPLATE, *WITHOUT_REST) as running:
        client = running.client()
        first, _ = invoke(client, "probe", {"do": "count"})
        wait_until_frozen(running)
        os.kill(monitor(running), signal.SIGKILL)
        until(lambda: states(running) == [])
        second, error = invoke(client, "probe", {"do": "count"})
        assert error is None and second["calls"] == 1, (first, second)


def test_repeated_rest_requests_do_not_prevent_freezing():
    """A runtime gets one rest for each wait, however often it announces one."""
    with Worker(TEMPLATE, *WITHOUT_REST) as running:
        client = running.client()
        assert invoke(client, "probe", {"do": "rest_for_ever"})[1] is None
        wait_until_frozen(running)
        time.sleep(1)
        assert states(running) == [True]
