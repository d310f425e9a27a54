"""Instances in a microVM: partitions come and go with them, they are apart, and the VM's death is survived.

The VM boots Debian's kernel, translated where there is no KVM: a minute in all; and once Mayfly's, which
merges pages. `mayfly vm image` is run first; it only looks when there is an image.
"""

import concurrent.futures
import os
import signal
import subprocess
import time

import pytest
from calls import invoke
from conftest import HERE, MAYFLY, Worker

PATIENCE_S = 120


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
    return found


TEMPLATE = str(HERE / "functions/template.yaml")


@pytest.fixture(scope="module")
def vm():
    subprocess.run([MAYFLY, "vm", "image"], check=True, stdout=subprocess.DEVNULL)
    with Worker(TEMPLATE, "--sandbox", "vm", "--partitions", "2", "--keep-alive", "4") as running:
        yield running
        assert running.stop() == 0


def test_an_instance_lives_in_a_partition_and_leaves_it(vm):
    client = vm.client()
    answer, error = invoke(client, "probe", {"do": "count"})
    assert error is None and answer["calls"] == 1, answer
    until(lambda: vm.sample()["vm"]["used"] == 1, vm.sample)
    assert [event["partition"] for event in vm.events("plug")] == [0]
    answer, error = invoke(client, "probe", {"do": "large", "bytes": 1 << 20})
    assert error is None and len(answer) == 1 << 20
    # Idle for longer than it is kept: stopped, and its memory given back.
    until(lambda: vm.events("unplug"), vm.log)
    until(lambda: vm.sample()["vm"]["plugged"] == 0, vm.sample)


def test_instances_are_apart(vm):
    client = vm.client()
    assert invoke(client, "neighbour", {"do": "count"})[1] is None
    look = "id -u; cat /var/task/app.py >/dev/null && echo code; ls /run | wc -l; "
    look += "cat /proc/*/environ; head -c1 /dev/vdb"
    answer, error = invoke(client, "probe", {"do": "shell", "command": look})
    assert error is None, answer
    user, code, others, *rest = answer["out"].splitlines()
    assert int(user) > 2_000_000_000 and (code, others) == ("code", "0")
    assert "of-the-neighbour" not in "".join(rest) and answer["code"] != 0
    for place in ["/x", "/usr/x", "/var/task/x", "/opt/x", "/var/mayfly/x"]:
        answer, _ = invoke(
            client, "probe", {"do": "shell", "command": f"touch {place} 2>/dev/null || echo no"}
        )
        assert answer["out"] == "no\n", place


def test_requests_are_told_that_the_vm_died_and_it_comes_again(vm):
    client = vm.client()
    # On a slow machine the instance may have been idle for too long by the time that the VM is stopped; then
    # the request was not given to it, and another VM's instance may run it.
    for _ in range(4):
        answer, error = invoke_while_the_vm_dies(vm, client)
        if error is not None:
            break
    assert error == "Unhandled" and answer["errorType"] == "Runtime.ExitError", answer
    until(lambda: [event for event in vm.events("vm") if event["message"].startswith("ended")], vm.log)
    assert invoke(client, "single", {"do": "count"})[1] is None


def test_merged_pages_lie_in_the_shared_partition_and_hold_up_no_unplug():
    subprocess.run([MAYFLY, "vm", "image", "--kernel", "hotmem"], check=True, stdout=subprocess.DEVNULL)
    options = ["--sandbox", "vm", "--mode", "hotmem", "--partitions", "3", "--keep-alive", "20"]
    with Worker(TEMPLATE, *options) as running:
        client = running.client()
        table = {"do": "hold", "mib": 24, "seconds": 2}
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            held = list(threads.map(lambda _: invoke(client, "probe", table), range(2)))
        assert [error for _, error in held] == [None, None], held

        def merged():
            sample = running.sample()
            vm, function = sample["vm"], sample["functions"]["probe"]
            once, mapped = vm["merged_bytes"], vm["mapped_merged_bytes"]
            # Two tables of 24 MiB, one of them in the shared partition, none in the instances' own.
            return mapped > 48 << 20 and once < 40 << 20 and function["private_bytes"] < 40 << 20

        until(merged, running.sample)
        assert invoke(client, "probe", {"do": "check"}) == (True, None), "what was merged is as it was"
        # They end, one before the other; what they shared keeps neither partition.
        until(lambda: len(running.events("unplug")) >= 2, running.log)
        until(lambda: running.sample()["vm"]["merged_bytes"] == 0, running.sample)
        assert not running.events("fail")
        assert running.stop() == 0


def invoke_while_the_vm_dies(vm, client):
    assert invoke(client, "single", {"do": "count"})[1] is None
    until(lambda: '"phase":"idle"' in vm.get("/instances"), vm.log)
    process = next(p for p in vm.descendants() if is_qemu(p))
    os.kill(process, signal.SIGSTOP)  # so that the request is surely under way
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asked = threads.submit(invoke, client, "single", {"do": "count"})
        until(lambda: vm.figure("mayfly_instances") >= 1, vm.log)
        time.sleep(0.5)
        os.kill(process, signal.SIGKILL)
        return asked.result(timeout=PATIENCE_S)


def is_qemu(process):
    with open(f"/proc/{process}/comm") as comm:
        return comm.read().startswith("qemu")
