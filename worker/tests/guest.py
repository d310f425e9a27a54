"""The first process of a guest with cgroup version 2 alone, which test_cgroup_v2.py boots. The worker serves
in it, and each check prints its result. Beside this file are `mayfly`, its libraries, and packages.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import urllib.request

PYTHON = f"python3.{sys.version_info.minor}"

HERE = pathlib.Path(__file__).resolve().parent
GROUPS = pathlib.Path("/sys/fs/cgroup")
CONTROLLERS = "+memory +pids +cpu"
PATIENCE_S = 300
UNPRIVILEGED = 1000  # a user other than root

APP = """
import os, signal, time

def handler(event, context):
    return globals()[event["do"]]()

def ping():
    return os.getpid()

def fill():
    held = []
    while True:
        held.append(bytearray(b"x") * (1 << 20))

def fork():
    children = []
    try:
        while len(children) < 5000:
            child = os.fork()
            if not child:
                signal.pause()
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    return len(children)

def burn():
    until = time.process_time() + 1
    while time.process_time() < until:
        pass
"""
TEMPLATE = """
Globals:
  Function: { Runtime: python3.11, Handler: app.handler, CodeUri: code, Timeout: 300 }
Resources:
  Small:
    Type: AWS::Serverless::Function
    Metadata: { Mayfly: { Cpus: 0.5, Snapshot: false } }
    Properties: { MemorySize: 128 }
  Large:
    Type: AWS::Serverless::Function
    Metadata: { Mayfly: { Snapshot: false } }
    Properties: { MemorySize: 1536 }
""".replace("python3.11", PYTHON)


def set_up():
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, place in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("cgroup2", "/sys/fs/cgroup"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
    ]:
        if libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {place}")
    os.chmod("/tmp", 0o1777)
    with socket.socket() as any_socket:  # the loopback device comes up: SIOCSIFFLAGS, IFF_UP
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))
    pathlib.Path("/tmp/code").mkdir()
    pathlib.Path("/tmp/code/app.py").write_text(APP)
    pathlib.Path("/tmp/template.yaml").write_text(TEMPLATE)


def until(condition, details):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, details()
        time.sleep(0.05)
    return found


def delegated(path, owner=0):
    """A cgroup as systemd makes one for a service with Delegate=yes."""
    folder = GROUPS
    for name in path.split("/"):
        (folder / "cgroup.subtree_control").write_text(CONTROLLERS)
        folder = folder / name
        folder.mkdir(exist_ok=True)
    for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"]:
        os.chown(folder / name, owner, owner)
    return folder


class Up:
    """A worker in a cgroup."""

    def __init__(self, group, user=0):
        self.group = group
        self.log_path = pathlib.Path(f"/tmp/log-{time.monotonic_ns()}")
        cache = pathlib.Path(f"/tmp/cache-{user}")
        (cache / "mayfly/worker").mkdir(parents=True, exist_ok=True)
        if not (cache / "mayfly/worker/python").is_symlink():
            (cache / "mayfly/worker/python").symlink_to(HERE / "python")
        for folder in [cache, cache / "mayfly", cache / "mayfly/worker"]:
            os.chown(folder, user, user)

        # Where an earlier worker has left its cgroup, the one above must have no process.
        leaf = group / "mayfly"
        place = leaf if leaf.exists() else group

        def enter():
            (place / "cgroup.procs").write_text("0")
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)

        self.process = subprocess.Popen(
            [
                HERE / "mayfly",
                "up",
                "/tmp/template.yaml",
                "--listen",
                "127.0.0.1:0",
                "--queue-wait",
                str(PATIENCE_S),
            ],
            env={"PATH": "/usr/sbin:/usr/bin", "XDG_CACHE_HOME": str(cache), "HOME": "/tmp", "NO_COLOR": "1"},
            stdout=subprocess.DEVNULL,
            stderr=self.log_path.open("w"),
            preexec_fn=enter,
        )
        self.now = self.process.pid
        self.url = until(
            lambda: re.search(r"API on (http://\S+)\n", self.log()) or self.ended(), self.log
        ).group(1)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def ended(self):
        assert self.process.poll() is None, self.log()

    def call(self, function, do):
        """The answer, and the error kind or None."""
        request = urllib.request.Request(
            f"{self.url}/2015-03-31/functions/{function}/invocations", json.dumps({"do": do}).encode()
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer), answer.headers["X-Amz-Function-Error"]

    def right(self, function, do):
        answer, error = self.call(function, do)
        assert error is None, (answer, self.log())
        return answer

    def own(self):
        """The cgroups that the worker has made."""
        return sorted(self.group.glob("mayfly-worker-*"))

    def instances(self):
        """Of instances: an empty sandbox has no limits yet."""
        found = []
        for kind in ("instance", "ready"):
            for group in self.group.glob(f"mayfly-worker-*/{kind}-*"):
                with contextlib.suppress(FileNotFoundError):
                    found += [group] if read(group, "memory.max") != "max" else []
        return sorted(found)

    def stop(self):
        """Ends the worker, which leaves no cgroup and no process."""
        os.kill(self.now, signal.SIGTERM)
        if self.now == self.process.pid:
            assert self.process.wait(PATIENCE_S) == 0, self.log()
        until(lambda: not self.own() and not populated(self.group), lambda: [*self.own(), self.log()])


def populated(group):
    return "populated 1" in (group / "cgroup.events").read_text()


def all_frozen(groups):
    return all("frozen 1" in read(group, "cgroup.events") for group in groups)


def read(group, file):
    return (group / file).read_text().strip()


def counted(group, file, name):
    return int(re.search(rf"^{name} (\d+)$", (group / file).read_text(), re.MULTILINE).group(1))


def cgroup_v2_is_the_only_hierarchy(_):
    assert pathlib.Path("/proc/self/cgroup").read_text() == "0::/\n"
    mounts = pathlib.Path("/proc/mounts").read_text().splitlines()
    assert [line.split()[2] for line in mounts if "cgroup" in line.split()[2]] == ["cgroup2"]


def instances_are_below_the_cgroup_of_the_worker(up):
    up.right("Small", "ping")
    assert len(up.own()) == 1 and len(up.instances()) == 1, (list(GROUPS.rglob("mayfly*")), up.log())
    assert not list(GROUPS.glob("mayfly*")), "nothing at the hierarchy's root"
    assert read(up.instances()[0], "cgroup.procs"), "its processes are there"
    # The page store, which starts once the instance is idle, has its cgroup there, too.
    until(lambda: list(up.group.glob("mayfly-worker-*/store-*")), up.log)


def limits_match_the_function(up):
    (small,) = up.instances()
    expected = {
        "memory.max": str(128 << 20),
        "memory.oom.group": "1",
        "pids.max": "1024",
        "cpu.max": "50000 100000",
    }
    assert {file: read(small, file) for file in expected} == expected

    # From its idle work on, which the check of the store before lets begin, it has less weight until a call.
    def has_full_weight_at_work():
        up.right("Small", "ping")
        return read(small, "cpu.weight") == "7"

    until(has_full_weight_at_work, lambda: read(small, "cpu.weight"))


def memory_has_a_limit(up):
    answer, error = up.call("Small", "fill")
    assert error == "Unhandled" and "memory of 128 MB used up" in answer["errorMessage"], (answer, up.log())
    until(lambda: not up.instances(), up.log)


def processes_have_a_limit(up):
    made = up.right("Large", "fork")
    # The 1024 include the runtime itself, process 1 and their threads.
    assert 1000 < made < 1024, made
    (large,) = up.instances()
    assert counted(large, "pids.events", "max") > 0


def processors_have_a_limit(up):
    up.right("Small", "burn")
    small = next(group for group in up.instances() if read(group, "cpu.max") == "50000 100000")
    assert counted(small, "cpu.stat", "nr_throttled") > 0
    assert read(next(group for group in up.instances() if group != small), "cpu.max") == "max 100000"


def idle_instances_are_frozen(up):
    before = up.instances()
    assert len(before) == 2
    until(lambda: all_frozen(before), up.log)
    assert up.right("Large", "ping") and up.right("Small", "ping")
    assert up.instances() == before, "they were thawed"
    until(lambda: all_frozen(before), up.log)


def new_version_has_a_cgroup_of_its_own(up):
    earlier = up.own()
    os.kill(up.now, signal.SIGUSR2)
    up.now = int(until(lambda: re.search(r"handed over to PID (\d+)", up.log()), up.log).group(1))
    up.right("Small", "ping")
    until(lambda: up.process.poll() is not None, up.log)
    assert len(up.own()) == 1 and up.own() != earlier, (earlier, up.own())


def killed_worker_leaves_no_process(up):
    until(lambda: up.instances() and all_frozen(up.instances()), up.log)
    os.kill(up.now, signal.SIGKILL)
    until(lambda: not populated(up.group), lambda: list(up.group.rglob("cgroup.procs")))
    left = up.own()
    assert left, "its cgroups stay"
    again = Up(up.group)
    again.right("Small", "ping")
    assert len(again.own()) == 1 and again.own() != left, "the next one has removed them"
    again.stop()


def unprivileged_user_serves_from_a_delegated_cgroup(_):
    up = Up(delegated("user.slice/worker.scope", UNPRIVILEGED), UNPRIVILEGED)
    up.right("Small", "ping")
    (small,) = up.instances()
    assert read(small, "memory.max") == str(128 << 20) and read(small, "cpu.max") == "50000 100000"
    until(lambda: all_frozen([small]), up.log)
    up.stop()


CHECKS = [
    cgroup_v2_is_the_only_hierarchy,
    instances_are_below_the_cgroup_of_the_worker,
    limits_match_the_function,
    memory_has_a_limit,
    processes_have_a_limit,
    processors_have_a_limit,
    idle_instances_are_frozen,
    new_version_has_a_cgroup_of_its_own,
    killed_worker_leaves_no_process,
    unprivileged_user_serves_from_a_delegated_cgroup,
]


def main():
    set_up()
    up = Up(delegated("system.slice/mayfly-worker.service"))
    for check in CHECKS:
        began = time.monotonic()
        try:
            check(up)
            print(f"{check.__name__}: ok, {time.monotonic() - began:.1f} s", flush=True)
        except Exception:
            print(f"{check.__name__}: FAILED\n{traceback.format_exc()}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
    finally:
        os.sync()
        # RB_POWER_OFF
        ctypes.CDLL(None).reboot(0x4321FEDC)
