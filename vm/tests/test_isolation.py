"""Isolation of instances as docs/vm.md describes it: an attacker reaches no other instance, an ended instance
leaves nothing behind, and a partition with pages still in use is held."""

import json
import pathlib
import time

from command import MIB, ROOT, ask, check

# Puts a secret everywhere a neighbour could look for one; then answers each line.
VICTIM = """
import ctypes, os, socket, time
libc = ctypes.CDLL(None)
abstract, port = socket.socket(socket.AF_UNIX), socket.socket()
abstract.bind("\\0victim"), abstract.listen()
port.bind(("127.0.0.1", 7777)), port.listen()
assert libc.shmget(0x7777, 4096, 0o1666) >= 0
for folder in ("/tmp", "/dev/shm", "/run", "/root", "/var/tmp"):
    open(folder + "/victim", "w").write("secret")
print("up", flush=True)
while True:
    input()
    print("alive", flush=True)
"""


class Victim:
    """An instance in partition 1 with files, sockets and shared memory that an attacker might reach."""

    def __init__(self, vm):
        self.vm = vm
        vm("spawn", "victim-job", "-p", "1", "-e", "SECRET=of-the-victim", "--", "python3", "-c", VICTIM)
        vm.wait(lambda: "up" in vm("output", "victim-job"), "the victim is up")
        self.asked = 0

    def check_alive(self, what):
        path = str(pathlib.Path(self.vm.runtime.name) / "mayfly/vm/mayfly.sock")
        self.asked += 1
        answer = ask(path, {"verb": "input", "instance": "victim-job", "text": "?\n", "close": False})
        check("error" not in answer, what, "ended the neighbour:", answer)
        self.vm.wait(
            lambda: self.vm("output", "victim-job").count("alive") == self.asked,
            f"the neighbour answers after: {what}",
        )
        check(self.vm.status()["guest"]["state"] == "up", what, "ended the agent")


def test_attacker_reaches_no_other_instance(vm):
    vm("plug", "0", "1")
    victim = Victim(vm)
    script = (ROOT / "vm/tests/attacker.py").read_text()
    vm("spawn", "attacker", "-p", "0", "--", "python3", "-c", script)
    result = vm("output", "attacker", "--follow")
    broken = [line for line in result.splitlines() if "BROKEN" in line]
    check(not broken and result.count(": held") >= 14, broken or result)
    victim.check_alive("looking around")
    # Kill every process within reach, then fork as often as possible.
    vm.wait(lambda: vm.states()[0] == "ready", "the attacker has ended")
    vm("spawn", "killer", "-p", "0", "--", "sh", "-c", "sleep 600 & kill -9 -1; echo still here")
    check(vm("output", "killer", "--follow") in ("", "still here\n"), vm("output", "killer"))
    victim.check_alive("kill -9 -1")
    vm.wait(lambda: vm.states()[0] == "ready", "the killer has ended")
    vm("spawn", "bomb", "-p", "0", "--", "sh", "-c", "bomb() { bomb & bomb & sleep 600; }; bomb")
    most = max(process_count(vm, "bomb") for _ in range(8))
    check(8 < most <= 1024, "a fork bomb had", most, "processes")
    # Even with a fork bomb in every partition the agent can start threads.
    settings = "cat /proc/sys/kernel/threads-max /proc/sys/kernel/pid_max"
    allowed = min(int(number) for number in vm.tool(settings).split())
    check(allowed > 128 * 1024, "all of the guest may have", allowed, "threads")
    victim.check_alive("a fork bomb")
    vm("stop", "bomb", "--grace", "0s")
    vm("stop", "victim-job", "--grace", "0s")
    vm.all_absent()


def process_count(vm, name):
    time.sleep(0.3)
    instances = {instance["instance"]: instance["processes"] for instance in vm.json("stats")["instances"]}
    return instances[name]


def test_writes_of_an_instance_are_private_and_discarded_with_it(vm):
    vm("plug", "0")
    site = "/usr/lib/python3/dist-packages"
    write = f"mkdir -p {site} && echo 'import os; os.write(1, b\"planted\")' >{site}/evil.pth && echo done"
    check(vm("run", "--", "sh", "-c", f"{write}; python3 -c 'print(1)'") == "done\nplanted1\n")
    check(vm("run", "--", "python3", "-c", "print(1)") == "1\n", "a .pth of one instance runs in the next")
    check(vm.tool("python3 -c 'print(1)'") == "1\n", "a .pth of an instance runs in a tool")
    # Fills every writable file system until a write fails or the instance is killed; the next has as much.
    fill = "for f in /usr/x /tmp/x /dev/shm/x; do head -c 400M /dev/zero >$f; done 2>/dev/null; echo full"
    free = vm.json("stats")["guest"]["nodes"][0]["free_bytes"]
    for _ in range(2):
        vm("spawn", "filler", "-p", "0", "--", "sh", "-c", fill)
        vm("output", "filler", "--follow")
        vm.wait(lambda: vm.states()[0] == "ready", "the filler has ended")
    check(
        vm("run", "--", "sh", "-c", "head -c 20M /dev/zero >/usr/y && stat -c %s /usr/y") == f"{20 * MIB}\n"
    )
    check(vm.tool("echo x >/usr/y && rm /usr/y && echo fine") == "fine\n", "the root that tools have is full")
    left = free - vm.json("stats")["guest"]["nodes"][0]["free_bytes"]
    check(left < 32 * MIB, "ended instances hold", left // MIB, "MiB of boot memory")
    half = vm("run", "--vcpus", "0.5", "--", "cat", "/sys/fs/cgroup/cpu.max")
    check(half == "50000 100000\n", "half a vCPU is", half)
    vm.refused("no vCPU 7: the VM has 0 to 1", "spawn", "x", "-p", "0", "--cpus", "7", "--", "true")
    vm.all_absent()


# Makes pages that can be passed on in one of several ways, and prints the descriptor that holds them.
MAKER = """
import ctypes, fcntl, mmap, os, socket, sys, time
way, size = sys.argv[1], 1 << 20
def memory_file():
    file = os.memfd_create("handed-on")
    os.write(file, b"x" * size)
    return file
if way == "pipe":
    keep, end = os.pipe()
    fcntl.fcntl(end, 1031, size)
    pages = mmap.mmap(-1, size)
    pages.write(b"x" * size)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char.from_buffer(pages)), size)
    assert ctypes.CDLL(None).vmsplice(end, vector, 1, 0) == size
elif way == "memfd":
    keep = memory_file()
elif way == "tmpfs":
    keep = os.open("/dev/shm/handed-on", os.O_RDWR | os.O_CREAT)
    os.write(keep, b"x" * size)
elif way == "rights":
    one, other = socket.socketpair()
    file = memory_file()
    socket.send_fds(one, [b"x"], [file])
    os.close(file)
    keep = other.fileno()
print("keep", keep, flush=True)
time.sleep(600)
"""
# A tool that, as root, takes a descriptor out of an instance (pidfd_getfd); no instance could.
TAKER = """
import ctypes, sys, time
call, (name, number) = ctypes.CDLL(None).syscall, sys.argv[1:]
for pid in open(f"/sys/fs/cgroup/instances/{name}/cgroup.procs").read().split():
    if call(438, call(434, int(pid), 0), int(number), 0) >= 0:
        print("taken", flush=True)
time.sleep(600)
"""


def pass_pages_on(vm, way, partition=0):
    """An instance makes pages and ends, while a tool holds them."""
    vm("spawn", f"maker-{way}", "-p", str(partition), "--", "python3", "-c", MAKER, way)
    vm.wait(lambda: "keep" in vm("output", f"maker-{way}"), "the maker has made its pages")
    number = vm("output", f"maker-{way}").split()[1]
    vm("spawn", f"taker-{way}", "--outside", "--", "python3", "-c", TAKER, f"maker-{way}", number)
    vm.wait(lambda: "taken" in vm("output", f"taker-{way}"), "the taker holds them")
    vm("stop", f"maker-{way}", "--grace", "0s")


def test_partition_is_held_while_another_process_has_its_pages(vm):
    vm("plug", "0", "1")
    for way in ("pipe", "memfd", "tmpfs", "rights"):
        pass_pages_on(vm, way)
        check(vm.states()[0] == "held", way, "does not hold its partition:", vm("list"))
        why = vm.status()["partitions"][0]["why"]
        pages = int(why.split()[0])
        check(256 <= pages < 400 and f"left by instance maker-{way}" in why, why)
        if way != "rights":
            check(f"of taker-{way}" in why, "the holder is not named:", why)
        vm.refused("partition 0 is held", "spawn", "x", "-p", "0", "--", "true")
        began = time.monotonic()
        vm.refused("partition 0 is held", "unplug", "0")
        print(f"  {way}: {why}; an unplug is refused after {time.monotonic() - began:.1f} s")
        check(time.monotonic() - began < 30, "an unplug was not refused at once")
        # The next instance gets another partition.
        spawned = json.loads(vm("spawn", f"next-{way}", "--json", "--", "true"))
        check(spawned["partition"] == 1, "an instance was started in a held partition:", spawned)
        vm.wait(lambda: vm.states()[1] == "ready", "the next instance has ended")
        vm("stop", f"taker-{way}", "--grace", "0s")
        vm.wait(lambda: vm.states()[0] == "ready", "the partition is released")
    vm.all_absent()
