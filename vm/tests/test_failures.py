"""The agent, QEMU or the supervisor dies at any moment: nothing leaks, and no client waits for ever."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import random_operations
from command import BOOT, MIB, PARTITIONS, PATIENCE, SIZE_MIB, ask, check, has_ended, supervisor_of


def test_agent_death_ends_its_instances_and_nothing_else(vm):
    vm("plug", "0", "1")
    vm.hog("a", 50, 0)
    if vm.mode == "nodes":
        # As if it died in the middle of an unplug. Node 0 is boot memory, 1 the shared partition.
        offline = (
            "for block in /sys/devices/system/node/node3/memory[0-9]*; do echo offline >$block/state; done"
        )
        vm.tool(f"{offline}; echo done")
        online = [node["partition"] for node in vm.json("stats")["guest"]["nodes"]]
        check(0 in online and 1 not in online, "partition 1 was not taken offline:", online)
    # From the root cgroup, in which no new agent kills; for a while, so that the test sees the guest down.
    seconds = max(8, 2 * vm.status()["boot_ns"] / 1e9)
    killer = (
        "import os, time\n"
        "open('/sys/fs/cgroup/cgroup.procs', 'w').write(str(os.getpid()))\n"
        f"end = time.monotonic() + {seconds:.0f}\n"
        "while time.monotonic() < end:\n"
        "    for pid in open('/proc/1/task/1/children').read().split():\n"
        "        if open(f'/proc/{pid}/cmdline').read().startswith('vm-agent'): os.kill(int(pid), 9)\n"
        "    time.sleep(0.02)\n"
    )
    vm("spawn", "killer", "--outside", "--", "python3", "-c", killer)
    vm.wait(lambda: vm.status()["guest"]["state"] == "down", "the guest is down")
    # An agent may be up for a moment.
    for _ in range(50):
        line = subprocess.run(
            [vm.program, "vm", "plug", "2"], capture_output=True, text=True, env=vm.environment
        ).stderr
        if "the guest is down" in line:
            break
        vm.wait(lambda: vm.status()["guest"]["state"] == "down", "the guest is down")
    check("the guest is down" in line, "a plug while the guest is down:", line)
    vm.wait(lambda: vm.status()["guest"]["state"] == "up", "the guest is up again")
    vm.wait(lambda: set(vm.states()) <= {"ready", "absent"}, "all partitions are empty")
    check(vm.json("stats")["instances"] == [], vm("stats"))
    check(vm.node(1)["total_bytes"] == SIZE_MIB * MIB, "partition 1 is not whole:", vm("stats"))
    check(vm("run", "--", "echo", "alive") == "alive\n")
    vm.all_absent()


def test_stopping_qemu_for_a_while_loses_nothing(vm):
    vm("plug", "0")
    pid = vm.status()["qemu_pid"]
    asked = subprocess.Popen(
        [vm.program, "vm", "unplug", "0"],
        env=vm.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(pid, signal.SIGCONT)
    asked.wait(PATIENCE)
    vm.wait(lambda: vm.states()[0] in ("ready", "absent"), "partition 0 is ready or absent")
    vm.all_absent()


def random_request(dice):
    """A random request."""
    partition = dice.randrange(PARTITIONS)
    name = f"r{dice.randrange(4)}"
    mib = dice.choice([20, 100, SIZE_MIB + 40])
    argv = dice.choice(
        [["true"], ["/opt/mayfly/memhog", str(mib)], ["sh", "-c", "sleep 0.1 & sleep 0.1; exit 3"]]
    )
    spawn = {"instance": name, "partition": partition, "argv": argv}
    return dice.choice(
        [
            {"verb": "plug", "partition": None},
            {"verb": "plug", "partition": partition},
            {"verb": "spawn", "outside": False, "spawn": spawn},
            {"verb": "spawn", "outside": False, "spawn": spawn},
            {"verb": "stop", "instance": name, "grace_ms": dice.choice([0, 100])},
            {"verb": "unplug", "partition": partition},
            {"verb": "memory"},
        ]
    )


def test_random_requests_of_several_clients_leak_nothing(vm):
    path = str(pathlib.Path(vm.runtime.name) / "mayfly/vm/mayfly.sock")
    total = vm.json("stats")["guest"]["meminfo_bytes"]["MemTotal"]
    resident = vm.status()["host_resident_bytes"]
    seed = random.randrange(1 << 32)
    print(f"  seed {seed}")
    # Refusals that are allowed, because another client may have been faster.
    allowed = re.compile("partition|no instance|runs already|is not|Busy|busy|ready")
    problems = []

    def client(number):
        dice = random.Random(seed + number)
        for round_number in range(30):
            command = random_request(dice)
            answer = ask(path, command)
            if "error" in answer and not allowed.search(answer["error"]):
                problems.append((round_number, command, answer))

    clients = [threading.Thread(target=client, args=[number]) for number in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    check(not problems, problems)
    vm.wait(lambda: set(vm.states()) <= {"ready", "absent", "in_use"}, "all is settled")
    vm.all_absent()
    now = vm.json("stats")["guest"]["meminfo_bytes"]["MemTotal"]
    check(now == total, "MemTotal was", total, "and is", now)
    check(vm.status()["host_resident_bytes"] < resident + 60 * MIB, "QEMU had", resident, vm("list"))


def test_model_and_vm_agree_at_every_step(vm):
    path = str(pathlib.Path(vm.runtime.name) / "mayfly/vm/mayfly.sock")
    seed = random.randrange(1 << 32)
    print(f"  seed {seed}")

    def boot():
        vm.wait(lambda: vm("list") == "no VM runs\n", "the supervisor has ended")
        vm.boot()

    agreement = random_operations.Agreement(lambda command: ask(path, command), SIZE_MIB * MIB, seed, boot)
    try:
        done = agreement.run(vm.steps)
    except random_operations.Disagreement as disagreement:
        raise AssertionError(f"after {dict(agreement.done)}: {disagreement}") from disagreement
    print("  " + ", ".join(f"{what} {times}" for what, times in sorted(done.items())))
    print(f"  at most {agreement.late_s:.1f} s after a pause's end")
    # In few steps some operation may not occur.
    for what in ("plug", "unplug", "spawn", "stop", "kill", "take", "unplug refused"):
        check(done[what] > 0 or vm.steps < 1000, f"in {vm.steps} steps, no", what)
    check(done["plug"] and done["unplug refused"], "nothing was done:", dict(done))
    for what, every in (
        ("QEMU paused", 15),
        ("agent paused", 25),
        ("QEMU killed", 90),
        ("agent killed", 100),
    ):
        check(done[what] > 0 or vm.steps < every, f"in {vm.steps} steps, no", what)


def test_killing_the_supervisor_ends_qemu_and_frees_the_name(vm):
    qemu = vm.status()["qemu_pid"]
    supervisor = supervisor_of(vm)
    os.kill(supervisor, signal.SIGKILL)
    vm.wait(lambda: has_ended(qemu), "QEMU has ended")
    # It holds its name until it has ended.
    vm.wait(lambda: has_ended(supervisor), "the supervisor has ended")
    check(vm("list") == "no VM runs\n", vm("list"))
    vm.boot()


def test_killing_qemu_ends_the_supervisor(vm):
    booted = vm.status() | {"socket": str(pathlib.Path(vm.runtime.name) / "mayfly/vm/mayfly.sock")}
    vm("plug", "0", "1")
    vm.hog("a", 50, 0)
    supervisor = supervisor_of(vm)
    asked = subprocess.Popen(
        [vm.program, "vm", "plug", "2"],
        env=vm.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.kill(booted["qemu_pid"], signal.SIGKILL)
    vm.wait(lambda: has_ended(supervisor), "the supervisor has ended")
    check(asked.wait(PATIENCE) in (0, 1))
    check(not os.path.exists(booted["socket"]), "the socket is still there")
    log = (pathlib.Path(booted["socket"]).parent / "mayfly.log").read_text()
    check("mayfly: the VM has ended: QEMU was killed by signal 9\n" in log, log)


def test_killing_either_process_ends_both_and_the_next_vm_boots(host):
    seed = random.randrange(1 << 32)
    print(f"  seed {seed}")
    for number, victim in enumerate(("qemu", "qemu", "supervisor")):
        booted = host.boot()
        pids = {"qemu": booted["qemu_pid"], "supervisor": supervisor_of(host)}
        path, problems = booted["socket"], []

        def client(dice, path=path, problems=problems):
            # Until no process answers. Other tests check refusals.
            while True:
                try:
                    ask(path, random_request(dice))
                except TimeoutError as error:
                    problems.append(error)
                    return
                except (OSError, AssertionError):
                    return

        dice = random.Random(seed + number)
        clients = [threading.Thread(target=client, args=[random.Random(dice.random())]) for _ in range(3)]
        for thread in clients:
            thread.start()
        # At a random moment.
        time.sleep(dice.uniform(0, 3))
        os.kill(pids[victim], signal.SIGKILL)
        for name, pid in pids.items():
            host.wait(lambda pid=pid: has_ended(pid), f"the {name} has ended, after the {victim} was killed")
        for thread in clients:
            thread.join(PATIENCE)
            check(
                not thread.is_alive(),
                "a client still waits for an answer from a VM whose",
                victim,
                "was killed",
            )
        check(not problems, problems)
        check(host("list") == "no VM runs\n", host("list"))
        if victim == "qemu":
            check(not os.path.exists(path), "the socket is still there")
            log = (pathlib.Path(path).parent / "mayfly.log").read_text()
            check("mayfly: the VM has ended: QEMU was killed by signal 9\n" in log, log)


# A QEMU whose guest panics as if the translation had run a removed breakpoint; every second start is real.
PANICKING = """#!/bin/bash
if [[ "$*" =~ socket,id=console,fd=([0-9]+) ]] && [ ! -e "$0.panicked" ]; then
    touch "$0.panicked"
    echo "[    0.5] Oops: int3: 0000 [#1] SMP" >&"${BASH_REMATCH[1]}"
    exit 0
fi
rm -f "$0.panicked"
exec %s "$@"
"""


def test_boot_is_retried_after_a_stale_breakpoint(host):
    with tempfile.TemporaryDirectory() as folder:
        qemu = pathlib.Path(folder, "qemu-system-x86_64")
        qemu.write_text(PANICKING % shutil.which(qemu.name))
        # QEMU runs as a user of its own, in a root that has this folder.
        qemu.chmod(0o755)
        os.chmod(folder, 0o777)
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        command = [host.program, "vm", "boot", "--accelerator", "tcg", "--mode", host.mode, *BOOT, "--detach"]
        booted = subprocess.run(
            command, env=host.environment | path, capture_output=True, text=True, timeout=PATIENCE
        )
        check(booted.returncode == 0, booted.stderr)
        log = next(pathlib.Path(host.runtime.name).rglob("mayfly.log")).read_text()
        check("booting once more" in log + booted.stderr, "the second boot is not mentioned:", log)
        host("down")


def test_foreground_vm_shuts_down_on_signal(host):
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [host.program, "vm", "boot", "--json", "--mode", host.mode, *BOOT],
            env=host.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        status = json.loads(process.stdout.readline())
        process.send_signal(number)
        check(process.wait(PATIENCE) == 0, "exit code", process.returncode)
        check(
            has_ended(status["qemu_pid"]) and not os.path.exists(status["socket"]),
            "QEMU or the socket is still there",
        )
    process = subprocess.Popen([host.program, "vm", "boot", "--mode", host.mode, *BOOT], env=host.environment)
    # It claims its name when it is ready for signals.
    name = pathlib.Path(host.runtime.name) / "mayfly/vm/mayfly.lock"
    host.wait(name.exists, "the VM has its name")
    process.send_signal(signal.SIGTERM)
    # On a busy machine it may be ready by the time that the signal arrives; then it shuts down normally.
    check(process.wait(PATIENCE) in (128 + signal.SIGTERM, 0), "exit code", process.returncode)
    check(host("list") == "no VM runs\n", host("list"))
