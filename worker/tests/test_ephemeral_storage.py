"""An instance's /tmp is a disk of its own: it takes no memory, returns ENOSPC when full, and is removed with
the instance."""

import os
import pathlib
import signal

import pytest
from calls import in_shell, until
from conftest import TEMPLATE, Worker

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not pathlib.Path("/dev/loop-control").exists(),
    reason="disks need root and loop devices; /tmp is memory without",
)
MIB = 1 << 20


def shell(client, command, name="single"):
    return in_shell(client, command, name)


def disks(worker):
    """Deleted files of a worker, by its PID, that still back loop devices."""
    files = pathlib.Path("/sys/block").glob("loop*/loop/backing_file")
    found = []
    for file in files:
        try:
            found.append(file.read_text().strip())
        except OSError:
            continue  # the device is detached just now
    return [name for name in found if f"/mayfly-worker-{worker}-" in name and name.endswith("(deleted)")]


def test_tmp_does_not_count_as_memory(client):
    # The function has 128 MiB of memory.
    assert shell(client, "head -c 200M /dev/zero > /tmp/x && stat -c %s /tmp/x")["out"].strip() == str(
        200 * MIB
    )
    before = shell(client, "echo $PPID")["out"]
    assert shell(client, "sha256sum < /tmp/x; rm /tmp/x")["code"] == 0
    assert shell(client, "echo $PPID")["out"] == before, "no process was killed"


def test_full_tmp_returns_enospc_and_the_instance_survives(client):
    room = int(shell(client, "df --output=avail -B1 /tmp | tail -1")["out"])
    assert 512 * MIB <= room < 640 * MIB
    full = shell(client, f"fallocate -l {room - 4 * MIB} /tmp/a && head -c 8M /dev/zero > /tmp/b")
    assert full["code"] != 0 and "No space left on device" in full["err"], full
    assert (
        shell(client, "rm /tmp/a /tmp/b && echo x > /tmp/c && cat /tmp/c && rm /tmp/c")["out"].strip() == "x"
    )


def test_tmp_is_private_nosuid_and_nodev(client):
    # A file of its own name, since earlier tests may have left files of the neighbour.
    assert shell(client, "echo x >/tmp/of-single && ls /tmp/of-single")["code"] == 0
    assert "of-single" not in shell(client, "ls -A /tmp", "neighbour")["out"]
    assert shell(client, "rm /tmp/of-single")["code"] == 0
    options = shell(client, "grep ' /tmp ' /proc/mounts")["out"]
    assert "nosuid" in options and "nodev" in options, options


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_disks_are_removed_with_the_worker(how):
    with Worker(TEMPLATE) as running:
        client = running.client()
        assert shell(client, "echo x > /tmp/x", "probe")["code"] == 0
        worker = running.process.pid
        assert disks(worker), "a deleted file backs a loop device"
        running.stop(how)
    until(lambda: not disks(worker), lambda: disks(worker))
