"""Runs in an instance and tries to reach the agent, other instances, the kernel or the common root.

Prints one line for each attempt: its name and its result. If it succeeded, the result begins with "BROKEN".
"""

import ctypes
import errno
import fcntl
import glob
import os
import socket
import stat
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
attacks = []


def attack(function):
    attacks.append(function)
    return function


class Broken(Exception):
    pass


def call(name, number, *arguments):
    """Makes a system call that must fail."""
    result = libc.syscall(number, *arguments)
    if result >= 0:
        raise Broken(f"{name} returned {result}")
    return f"{name}: {errno.errorcode[ctypes.get_errno()]}"


def fails(what, action, *arguments):
    """Runs an action that must be refused."""
    try:
        result = action(*arguments)
    except OSError as error:
        return f"{what}: {errno.errorcode[error.errno]}"
    raise Broken(f"{what} returned {result!r}")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path, mode="r"):
    with open(path, mode) as file:
        return file.read(4096)


@attack
def panics_the_kernel():
    path = "/proc/sysrq-trigger"
    if os.path.samefile(path, "/dev/null"):
        return "sysrq: leads nowhere"
    return fails("sysrq", write, path, "c\n")


@attack
def changes_settings():
    yield fails("drop_caches", write, "/proc/sys/vm/drop_caches", "1")
    yield fails("core_pattern", write, "/proc/sys/kernel/core_pattern", "|/tmp/x")
    blocks = glob.glob("/sys/devices/system/memory/memory*/state")
    yield fails("hotplug", write, blocks[-1] if blocks else "/sys/devices/system/memory/none", "offline")


@attack
def raises_its_limits():
    group = "/sys/fs/cgroup"
    name = read("/proc/self/cgroup").strip().split("::")[1]
    for place in {group, group + name}:
        if os.path.exists(f"{place}/memory.max"):
            yield fails("memory.max", write, f"{place}/memory.max", "max")
            yield fails("pids.max", write, f"{place}/pids.max", "max")
    yield fails("leaving", write, f"{group}/cgroup.procs", "0")
    others = glob.glob(f"{group}/agent") + glob.glob(f"{group}/instances/*")
    if others:
        raise Broken(f"sees {others}")


@attack
def sees_processes_of_others():
    mine = {"1", str(os.getpid()), str(os.getppid())}
    seen = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    if not mine.issuperset(seen):
        raise Broken(f"sees processes {seen}")
    text = "".join(read(path) for path in glob.glob("/proc/*/cmdline"))
    if "victim-" + "job" in text:
        raise Broken("sees the command of another")
    for path in glob.glob("/proc/1/environ") + glob.glob("/proc/1/mem"):
        yield fails(path, read, path, "rb")


@attack
def traces_processes():
    for number in (1, os.getppid()):
        yield call("ptrace", 101, 16, number, 0, 0)
    yield call("process_vm_readv", 310, os.getpid(), 0, 0, 0, 0, 0)
    yield call("pidfd_getfd", 438, 0, 0, 0)


@attack
def mounts():
    yield call("mount", 165, b"none", b"/mnt", b"tmpfs", 0, 0)
    yield call("umount", 166, b"/proc/sys", 2)
    yield call("pivot_root", 155, b"/tmp", b"/tmp")
    yield call("chroot", 161, b"/tmp")
    yield call("open_tree", 428, -100, b"/", 1)
    yield call("unshare", 272, 0x10000000)
    yield call("setns", 308, 0, 0)
    yield call("clone of a user namespace", 56, 0x10000011, 0, 0, 0, 0)


@attack
def makes_devices():
    for kind, major, minor in ((stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1)):
        yield fails("mknod", os.mknod, f"/tmp/device-{major}", kind | 0o666, os.makedev(major, minor))


@attack
def opens_devices():
    names = (
        "vport*",
        "vd*",
        "mem",
        "kmsg",
        "hotmem",
        "hvc*",
        "ttyS*",
        "vsock",
        "kvm",
        "loop*",
        "virtio-ports/*",
    )
    there = [path for name in names for path in glob.glob(f"/dev/{name}")]
    if there:
        raise Broken(f"sees {there}")
    return "none are there"


@attack
def loads_modules():
    yield call("init_module", 175, b"x", 1, b"")
    yield call("finit_module", 313, 0, b"", 0)
    yield call("kexec_load", 246, 0, 0, 0, 0)
    yield call("reboot", 169, 0, 0, 0, 0)
    yield call("bpf", 321, 5, 0, 0)
    yield call("perf_event_open", 298, 0, 0, -1, -1, 0)
    yield call("io_uring_setup", 425, 8, 0)
    yield call("keyctl", 250, 0, -3, 0)
    yield call("add_key", 248, b"user", b"x", b"y", 1, -2)
    yield call("open_by_handle_at", 304, 0, 0, 0)
    yield call("settimeofday", 164, 0, 0)
    yield call("swapon", 167, b"/tmp/x", 0)
    yield call("userfaultfd that stops the kernel", 323, 0)


@attack
def moves_its_memory():
    mask = (ctypes.c_ulong * 4)(1)
    yield call("set_mempolicy", 238, 2, mask, 257)
    yield call("mbind", 237, 0x10000, 4096, 2, mask, 257, 0)
    yield call("move_pages", 279, 0, 0, 0, 0, 0, 0)
    yield call("migrate_pages", 256, 0, 257, mask, mask)


@attack
def opens_sockets_to_the_machine():
    for family, kind, protocol in (
        (40, 1, 0),
        (17, 3, 768),
        (16, 3, 15),
        (2, 3, 255),
        (38, 5, 0),
        (29, 3, 1),
    ):
        yield fails(f"family {family}", socket.socket, family, kind, protocol)
    names = {line.split(":")[0].strip() for line in read("/proc/net/dev").splitlines()[2:]}
    # Mayfly's kernel gives each network namespace a tunnel device, which no instance can enable.
    if names - {"lo", "sit0"}:
        raise Broken(f"sees interfaces {names}")
    if "sit0" in names:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            on = struct.pack("16sh14x", b"sit0", 1)
            yield fails("a tunnel is turned on", fcntl.ioctl, line, 0x8914, on)


@attack
def reaches_a_neighbour():
    with socket.socket(socket.AF_UNIX) as line:
        yield fails("an abstract socket", line.connect, "\0victim")
    with socket.socket() as line:
        yield fails("a port", line.connect, ("127.0.0.1", 7777))
    for path in ("/tmp/victim", "/dev/shm/victim", "/run/victim", "/root/victim", "/var/tmp/victim"):
        if os.path.exists(path):
            raise Broken(f"sees {path}")
    if libc.shmget(0x7777, 0, 0) >= 0:
        raise Broken("sees shared memory")


@attack
def gains_privileges():
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(status[name], 16):
            raise Broken(f"{name} is {status[name]}")
    if status["NoNewPrivs"] != "1" or status["Seccomp"] != "2":
        raise Broken("nothing keeps it from gaining privileges")
    yield fails("another user", os.setuid, 7)
    yield fails("a file for another", os.chown, "/tmp", 7, 7)
    outside = int(read("/proc/self/uid_map").split()[1])
    if outside == 0:
        raise Broken("is root in the guest")


@attack
def reads_shared_state():
    for name in ("kcore", "zoneinfo", "buddyinfo", "keys", "timer_list", "slabinfo"):
        path = f"/proc/{name}"
        try:
            if os.path.exists(path) and read(path, "rb"):
                raise Broken(f"reads {path}")
        except OSError:
            pass
    if os.path.exists("/sys/devices/system/node/node1"):
        raise Broken("sees the memory of other partitions")
    return "nothing there"


for one in attacks:
    name = one.__name__.replace("_", " ")
    try:
        found = one()
        found = found if isinstance(found, str) else ", ".join(part for part in found if part)
        print(f"{name}: held ({found})")
    except Broken as broken:
        print(f"BROKEN {name}: {broken}")
    except Exception as error:
        print(f"BROKEN {name}: unexpected {type(error).__name__}: {error}")
    sys.stdout.flush()
