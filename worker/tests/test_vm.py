"""Instances in a microVM occupy and free partitions and are isolated; the worker survives the VM's death.

The VM boots Debian's kernel, under emulation where there is no KVM: a minute in all; and once Mayfly's, which
merges pages. `mayfly vm image` runs first, and returns at once where there is an image.
"""

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import time

import pytest
from calls import PATIENCE_S, PYTHON, at_work, invoke, phases, until
from conftest import HERE, MAYFLY, TEMPLATE, Worker

# A request waits for as long as a VM takes to boot under emulation.
PATIENT = ["--sandbox", "vm", "--queue-wait", str(PATIENCE_S)]


@pytest.fixture(scope="module")
def vm():
    subprocess.run([MAYFLY, "vm", "image"], check=True, stdout=subprocess.DEVNULL)
    with Worker(TEMPLATE, *PATIENT, "--partitions", "2", "--keep-alive", "4") as running:
        for name in ["probe", "neighbour"]:  # an emulated guest is slow
            running.client().update_function_configuration(FunctionName=name, Timeout=60)
        yield running


def test_instance_occupies_a_partition_and_frees_it(vm):
    client = vm.client()
    answer, error = invoke(client, "probe", {"do": "count"})
    assert error is None and answer["calls"] == 1, answer
    vm.wait_for("VMs of mode nodes have no snapshots: instances start as ever")

    def is_seen_there():
        assert invoke(client, "probe", {"do": "count"})[1] is None  # so that it is not idle for long
        return vm.sample()["vm"]["used"] == 1

    until(is_seen_there, vm.sample)
    assert [event["partition"] for event in vm.events("plug")] == [0]
    answer, error = invoke(client, "probe", {"do": "large", "bytes": 1 << 20})
    assert error is None and len(answer) == 1 << 20
    # Idle for longer than --keep-alive: stopped, and its memory returned.
    until(lambda: vm.events("unplug"), vm.log)
    until(lambda: vm.sample()["vm"]["plugged"] == 0, vm.sample)


def test_instances_are_isolated(vm):
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


LIMITED = """
Resources:
  Small:
    Type: AWS::Serverless::Function
    Metadata: {{ Mayfly: {{ Cpus: 0.5 }} }}
    Properties: {{ {properties}, MemorySize: 128 }}
  Large:
    Type: AWS::Serverless::Function
    Properties: {{ {properties}, MemorySize: 384 }}
"""


def test_limits_hold_in_a_larger_partition_and_idle_instances_freeze(tmp_path):
    template = tmp_path / "template.yaml"
    code = HERE / "functions/probe"
    properties = f"CodeUri: {code}, Handler: app.handler, Runtime: {PYTHON}, Timeout: 300"
    template.write_text(LIMITED.format(properties=properties))
    # Without these layers an instance does not rest, so nothing thaws it.
    plain = ["--without", "heap,merge"]
    with Worker(str(template), *PATIENT, *plain, "--partitions", "1") as running:
        client = running.client()
        # /tmp has half of the memory: it is full before the instance is.
        fill = "head -c 200M /dev/zero >/tmp/full; echo $?; stat -c %s /tmp/full; rm /tmp/full"
        answer, error = invoke(client, "Small", {"do": "shell", "command": fill})
        assert error is None, answer
        code, size = map(int, answer["out"].split())
        assert code == 1 and 32 << 20 < size <= 64 << 20, answer
        assert {event["bytes"] for event in running.events("plug")} == {384 << 20}, running.log()
        # Threads are frozen between requests. They count by the guest's clock.
        assert invoke(client, "Small", {"do": "start_counting"})[1] is None
        until(lambda: running.figure("mayfly_freezes_total") >= 1, running.log)
        time.sleep(3)
        until(lambda: invoke(client, "Small", {"do": "counted"})[0]["longest_gap_s"] > 2, running.log)
        counted, error = invoke(client, "Small", {"do": "counted"})
        assert error is None and counted["count"] > 0, counted
        seen, error = invoke(client, "Small", {"do": "counted", "seconds": 1})
        assert error is None and seen["count"] > counted["count"], (counted, seen)
        # Half a processor, and no more memory than the function has.
        quota, error = invoke(client, "Small", {"do": "shell", "command": "cat /sys/fs/cgroup/cpu.max"})
        assert error is None and quota["out"] == "50000 100000\n", quota
        answer, error = invoke(client, "Small", {"do": "fill_memory"})
        assert error == "Unhandled" and "memory of 128 MB used up" in answer["errorMessage"], answer


DOMAINS = """
Globals:
  Function: { CodeUri: code, Handler: app.handler, Runtime: python3.11, MemorySize: 128, Timeout: 300 }
Resources:
  One: { Type: AWS::Serverless::Function, Metadata: { Mayfly: { Vm: red } }, Properties: {} }
  Two: { Type: AWS::Serverless::Function, Metadata: { Mayfly: { Vm: red } }, Properties: {} }
  Other: { Type: AWS::Serverless::Function, Metadata: { Mayfly: { Vm: blue } }, Properties: {} }
""".replace("python3.11", PYTHON)
SHELL = """
import subprocess
CALLS = []
def handler(event, context):
    CALLS.append(event)
    return [len(CALLS), subprocess.run(event, shell=True, capture_output=True, text=True).stdout]
"""
FILL = "for place in /tmp /var/tmp /dev/shm /run; do head -c 300M /dev/zero >$place/full; done"
KERNEL = "cat /proc/sys/kernel/random/boot_id"


def test_trust_domains_have_separate_vms_and_fail_separately(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").write_text(SHELL)
    template = tmp_path / "template.yaml"
    template.write_text(DOMAINS)
    with Worker(str(template), *PATIENT, "--without", "heap,merge", "--partitions", "3") as running:
        client = running.client()

        def output(name, command):
            answer, error = invoke(client, name, command)
            assert error is None, answer
            return answer

        machines = {name: qemu_of(running, name) for name in ["red", "blue"]}
        assert len(set(machines.values())) == 2
        (_, red), (_, of_two), (calls, blue) = (output(name, KERNEL) for name in ["One", "Two", "Other"])
        assert len(red) == 37 and red == of_two and red != blue and calls == 1
        # One domain fills its files, the other still has room.
        invoke(client, "One", FILL)  # the instance may not survive it
        assert output("Other", "head -c 1M /dev/zero >/tmp/x && echo there") == [2, "there\n"]
        # Its VM is killed and boots again; the other continues, with its instance.
        os.kill(machines["red"], signal.SIGKILL)
        until(
            lambda: [event for event in running.events("vm") if "red ended" in event["message"]], running.log
        )
        assert output("Other", KERNEL) == [3, blue]
        assert output("One", KERNEL)[1] not in (red, blue)
        assert output("Other", KERNEL) == [4, blue] and qemu_of(running, "blue") == machines["blue"]


def test_request_fails_with_its_vm_and_the_vm_restarts(vm):
    client = vm.client()
    with at_work(vm, "single", {"do": "sleep", "seconds": 250}) as asked:
        os.kill(qemu_of(vm), signal.SIGKILL)
        answer, error = asked.result(timeout=PATIENCE_S)
    assert error == "Unhandled" and answer["errorType"] == "Runtime.ExitError", answer
    until(lambda: [event for event in vm.events("vm") if event["message"].startswith("ended")], vm.log)
    assert invoke(client, "single", {"do": "count"})[1] is None


def test_starting_instance_moves_to_the_next_vm_if_its_vm_dies(vm):
    client = vm.client()
    until(lambda: vm.figure("mayfly_instances") == 0, vm.log)
    ended = len(vm.events("vm"))
    process = qemu_of(vm)
    os.kill(process, signal.SIGSTOP)  # so that nothing has started when it dies
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asked = threads.submit(invoke, client, "single", {"do": "count"})
        until(lambda: "starting" in phases(vm, "single"), vm.log)
        time.sleep(0.5)  # any moment would do; most often it waits for its partition by now
        os.kill(process, signal.SIGKILL)
        answer, error = asked.result(timeout=PATIENCE_S)
    assert error is None and answer["calls"] == 1, answer
    assert len(vm.events("vm")) >= ended + 2, "it ended and booted again"


def test_merged_pages_lie_in_the_shared_partition_and_block_no_unplug():
    subprocess.run(
        [MAYFLY, "vm", "image", "--kernel", "hotmem", "--linux", "7.3"], check=True, stdout=subprocess.DEVNULL
    )
    options = ["--mode", "hotmem", "--partitions", "3", "--without", "snapshot"]
    with Worker(TEMPLATE, *PATIENT, *options) as running:
        client = running.client()
        client.update_function_configuration(FunctionName="probe", Timeout=60)
        # For as long as the second instance takes to start after the first.
        table = {"do": "hold", "mib": 25, "seconds": 5}
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            held = list(threads.map(lambda _: invoke(client, "probe", table), range(2)))
        assert [error for _, error in held] == [None, None], held

        def merged():
            sample = running.sample()
            vm, function = sample["vm"], sample["functions"]["probe"]
            once, mapped = vm["merged_bytes"], vm["mapped_merged_bytes"]
            # Two tables of 25 MiB, of which whole pages are shared: one lies in the shared partition, none in
            # the instances' own.
            return mapped > 48 << 20 and once < 40 << 20 and function["private_bytes"] < 40 << 20

        until(merged, running.sample)
        assert invoke(client, "probe", {"do": "check"}) == (True, None), "merged contents are unchanged"
        # They end, one before the other; shared pages keep neither partition.
        client.delete_function(FunctionName="probe")
        until(lambda: len(running.events("unplug")) >= 2, running.log)
        until(lambda: running.sample()["vm"]["merged_bytes"] == 0, running.sample)
        assert not running.events("fail")


def qemu_of(worker, domain=""):
    """The VM of a domain; its latest, where it was replaced."""
    name = rf"mayfly-worker-{worker.process.pid}-(\d+)" + (f"-{domain}" if domain else "") + ","
    numbers = {process: re.search(name, arguments_of(process)) for process in worker.descendants()}
    found = {int(number[1]): process for process, number in numbers.items() if number}
    return found[max(found)]


def arguments_of(process):
    """The arguments of a QEMU process; empty for others, and for ended ones."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{process}/comm") as comm,
        open(f"/proc/{process}/cmdline", "rb") as arguments,
    ):
        if comm.read().startswith("qemu"):
            return arguments.read().decode()
    return ""
