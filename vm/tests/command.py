"""Runs the `mayfly vm` command for the tests, and finds a VM's processes."""

import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
PARTITIONS = 3
SIZE_MIB = 256
# Debian's default costs 300 ms a partition here; bench/vm measures it.
APPEND = "init_on_alloc=0"
# Timeout for everything that must happen.
PATIENCE = 300
BOOT = [
    "-n",
    str(PARTITIONS),
    "--partition-size",
    f"{SIZE_MIB}MiB",
    "--shared-size",
    "256MiB",
    "--append",
    APPEND,
    "--patience",
    "240s",
]


def check(condition, *what):
    """Asserts, and reports what was seen."""
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


class Command:
    """The mayfly command, with a folder of its own for control sockets."""

    def __init__(self, program, mode, linux=None):
        self.program = program
        self.mode = mode
        self.kernel = ["--kernel", "hotmem"] if mode in ("hotmem", "ranges") else []
        self.linux = ["--linux", linux] if linux else []
        self.runtime = tempfile.TemporaryDirectory(prefix="mayfly-vm-test-")
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=self.runtime.name)

    def __call__(self, *words, expect=0, environment=None, timeout=PATIENCE):
        """Runs `mayfly vm WORDS`; returns stdout, or the line on stderr if it is expected to fail."""
        result = subprocess.run(
            [self.program, "vm", *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment or self.environment,
        )
        check(
            result.returncode == expect, words, "exited with", result.returncode, result.stdout, result.stderr
        )
        if expect == 1:
            check(
                result.stderr.startswith("mayfly: ") and result.stderr.count("\n") == 1,
                "not one line:",
                result.stderr,
            )
            return result.stderr
        return result.stdout

    def json(self, *words):
        return json.loads(self(*words, "--json"))

    def refused(self, expected, *words, environment=None):
        line = self(*words, expect=1, environment=environment)
        check(expected in line, words, "was refused with", line, "and not", expected)

    def status(self):
        return self.json("list")["vms"][0]

    def states(self):
        return [partition["state"] for partition in self.status()["partitions"]]

    def wait(self, condition, what, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while not condition():
            check(time.monotonic() < deadline, "never:", what, self("list"))
            time.sleep(0.05)

    def boot(self, *words, mode=None):
        began = time.monotonic()
        for left in reversed(range(3)):
            try:
                status = self.json("boot", "--detach", "--mode", mode or self.mode, *(words or BOOT))
                break
            except AssertionError as failed:
                # An assertion of QEMU's own about its memory map, seen with QEMU 10.0 under emulation.
                if left == 0 or "iotlb_to_section" not in str(failed):
                    raise
                print("QEMU ended by an assertion of its own: boots again")
        status["wall"] = time.monotonic() - began
        return status

    def tool(self, command):
        """Runs a shell command in the guest, outside all partitions."""
        name = f"tool-{time.monotonic_ns()}"
        self("spawn", name, "--outside", "--", "sh", "-c", command)
        return self("output", name, "--follow")

    def hog(self, name, mib, partition):
        """Starts an instance that holds this much memory; returns when it does."""
        self("spawn", name, "--partition", str(partition), "--", "/opt/mayfly/memhog", str(mib))
        self.wait(lambda: "filled" in self("output", name), f"{name} filled its memory")

    def node(self, partition):
        nodes = self.json("stats")["guest"]["nodes"]
        return next(node for node in nodes if node["partition"] == partition)

    def counter(self, name):
        return self.json("stats")["guest"]["vmstat"][name]

    def all_absent(self):
        for name in [state["instance"] for state in self.status()["partitions"] if "instance" in state]:
            try:
                self("stop", name, "--grace", "0s")
            except AssertionError as failed:
                # It may have ended by itself since it was listed.
                check("no instance" in str(failed), failed)
        self("unplug", "--all")
        check(self.states() == ["absent"] * PARTITIONS, "left behind:", self("list"))


def has_ended(pid):
    """Whether a process does not exist, or is a zombie."""
    try:
        return re.search(r"^State:\s+Z", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M) is not None
    except (FileNotFoundError, ProcessLookupError):
        return True


def supervisor_of(vm):
    return int(
        re.search(
            r"^PPid:\s+(\d+)", pathlib.Path(f"/proc/{vm.status()['qemu_pid']}/status").read_text(), re.M
        ).group(1)
    )


def ask(path, command):
    """Sends one request to the control socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(path)
        connection.sendall(json.dumps(command).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = connection.recv(1 << 16)
            check(part, "the supervisor hung up on", command)
            answer += part
    return json.loads(answer)
