"""VMs for the tests. Each test gets a VM that is up and whose partitions are absent: the previous test's, if
that left it so, or a new one."""

import os

import pytest
from command import PARTITIONS, ROOT, Command, check, has_ended


def pytest_addoption(parser):
    parser.addoption("--linux", metavar="VERSION", help="of both kernels, as for mayfly vm image")
    parser.addoption("--mode", choices=["nodes", "hotmem", "ranges"], default="nodes")
    parser.addoption(
        "--steps", type=int, default=120, metavar="N", help="steps of the randomized model test (120)"
    )


@pytest.fixture(scope="session")
def command(request):
    """The command, with images built. No VM outlives the tests."""
    program = os.environ.get("MAYFLY", str(ROOT / "target/release/mayfly"))
    vm = Command(program, request.config.getoption("mode"), request.config.getoption("linux"))
    vm.steps = request.config.getoption("steps")
    vm("image", *vm.kernel, *vm.linux, timeout=3600)
    vm("image", *vm.linux, timeout=3600)
    yield vm
    down(vm)


@pytest.fixture
def host(command):
    """No VM runs."""
    down(command)
    return command


@pytest.fixture
def vm(command):
    """One VM runs, and all its partitions are absent."""
    running = command.json("list")["vms"]
    if [is_fresh(status) for status in running] != [True]:
        down(command)
        command.boot()
    return command


def is_fresh(status):
    states = [partition["state"] for partition in status["partitions"]]
    return (
        (status["name"], status["guest"]["state"]) == ("mayfly", "up")
        and states == ["absent"] * PARTITIONS
        and status["outside"] == []
    )


def down(command):
    for status in command.json("list")["vms"]:
        command("down", "--vm", status["name"])
        check(has_ended(status["qemu_pid"]), "QEMU", status["qemu_pid"], "is still there")
