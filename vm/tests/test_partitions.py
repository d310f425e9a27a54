"""A VM and its partitions as docs/vm.md describes them: plugged and unplugged, instances confined to theirs,
and wrong requests refused in one line."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile

from command import BOOT, MIB, PARTITIONS, PATIENCE, SIZE_MIB, ask, check


def test_invalid_requests_are_refused_in_one_line(host):
    host.refused("no VM runs: start one with: mayfly vm boot", "plug")
    host.refused("no VM x runs", "plug", "--vm", "x")
    host.refused("no VM x runs", "list", "--vm", "x")
    host.refused("too many", "boot", "-n", "128")
    host.refused("too many", "boot", "-n", "127")
    host.refused("a huge page", "boot", "--partition-size", "201MiB")
    host.refused("multiple of 128 MiB", "boot", "--shared-size", "200MiB")
    host.refused("3 partitions and 2 sizes", "boot", "-n", "3", "--partition-size", "128MiB,256MiB")
    host.refused("larger than this host's memory", "boot", "--partition-size", "100TiB")
    host.refused("larger than the VM", "boot", "--limit", "256MiB", "--partition-size", "256MiB")
    host.refused(
        "not enough memory on this host", "boot", "--mode", "static", "-n", "100", "--partition-size", "4GiB"
    )
    stock = pathlib.Path(host.json("image", *host.linux)["folder"])
    host.refused("mode hotmem needs Mayfly's kernel", "boot", "--mode", "hotmem", "--image", str(stock))
    with tempfile.TemporaryDirectory() as empty:
        elsewhere = dict(host.environment, XDG_CACHE_HOME=empty)
        host.refused("build it once with: mayfly vm image", "boot", environment=elsewhere)
        host.refused("no VM image in", "boot", "--image", empty)
        host.refused(
            "qemu-system-x86_64 is not installed: apt install",
            "boot",
            environment=dict(host.environment, PATH=empty),
        )
    check(host("list") == "no VM runs\n", host("list"))


def check_confined(qemu):
    """QEMU has no privileges, an empty root, no network, and few system calls."""
    for thread in (qemu / "task").iterdir():
        confined = re.search(r"^Seccomp:\s+2$", (thread / "status").read_text(), re.M)
        check(confined, "a thread of QEMU without a filter of system calls:", (thread / "comm").read_text())
    about = (qemu / "status").read_text()
    check(re.search(r"^NoNewPrivs:\s+1$", about, re.M), "QEMU may gain privileges")
    if os.geteuid() != 0:
        return  # Then QEMU runs as that user, who has no privileges to drop.
    users = set(re.search(r"^Uid:\s+(.*)$", about, re.M).group(1).split())
    check(len(users) == 1 and int(*users) >= 0x70000000, "QEMU's user is", users)
    check(re.search(r"^Groups:\s*$", about, re.M), "QEMU has groups", about)
    for which in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        check(re.search(rf"^{which}:\s+0+$", about, re.M), "QEMU has capabilities", which)
    for kind in ("mnt", "net", "ipc", "uts"):
        own, ours = (os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (qemu.name, "self"))
        check(own != ours, "QEMU shares the host's", kind)
    seen = {entry.name for entry in (qemu / "root").iterdir()}
    allowed = {"usr", "bin", "lib", "lib64", "etc", "dev", "proc", "sys", "kernel", "initrd", "disk"}
    check({"kernel", "initrd", "disk"} <= seen <= allowed, "QEMU sees", seen)
    devices = {entry.name for entry in (qemu / "root/dev").iterdir()}
    check(devices <= {"null", "urandom", "kvm"}, "QEMU sees devices", devices)
    check(not (qemu / "root/proc/self").exists(), "QEMU sees processes")
    interfaces = (qemu / "net/dev").read_text().splitlines()[2:]
    check([line.split(":")[0].strip() for line in interfaces] == ["lo"], "QEMU's network:", interfaces)


def test_vm_boots(host):
    status = host.boot()
    print(
        f"  agent ready after {status['boot_ns'] / 1e9:.1f} s ({status['accelerator']}), all of boot "
        f"{status['wall']:.1f} s, load {os.getloadavg()[0]:.1f}"
    )
    socket_mode = os.stat(status["socket"]).st_mode & 0o777
    check(socket_mode == 0o600, "socket mode", oct(socket_mode))
    check_confined(pathlib.Path(f"/proc/{status['qemu_pid']}"))
    host.refused("a VM mayfly runs already", "boot")
    image = os.open(host.json("image", *host.kernel, *host.linux)["folder"], os.O_RDONLY)
    try:
        fcntl.flock(image, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise AssertionError("another process could prune the image of a running VM from the cache")
    except BlockingIOError:
        os.close(image)
    check(host.states() == ["absent"] * PARTITIONS, host("list"))


def test_partition_is_plugged_used_and_unplugged(vm):
    vm("plug", "0", "1")
    vm.refused("partition 0 is already plugged", "plug", "0")
    vm.refused("no partition 9: the VM was made with partitions 0 to 2", "plug", "9")
    vm.refused("partition 2 is absent: plug it first", "unplug", "2")
    vm.refused("partition 2 is absent: plug it first", "spawn", "x", "-p", "2", "--", "true")
    vm.refused("an instance's name has", "spawn", "a/b", "--", "true")
    vm.refused("no instance ghost runs", "stop", "ghost")
    vm.refused("nosuchprogram", "spawn", "x", "--", "nosuchprogram")
    vm.hog("a", 200, 0)
    vm.hog("b", 200, 1)
    vm.refused("partition 0 is in use by instance a: stop it first", "unplug", "0")
    vm.refused("partition 0 is in use by instance a", "spawn", "c", "-p", "0", "--", "true")
    vm.refused("an instance a runs already", "spawn", "a", "-p", "1", "--", "true")
    vm.refused("no partition is ready", "spawn", "c", "--", "true")
    for partition in (0, 1):
        anonymous = vm.node(partition)["anonymous_bytes"] // MIB
        check(195 <= anonymous <= 225, "partition", partition, "has", anonymous, "MiB of an instance's 200")
    migrated = vm.counter("pgmigrate_success")
    # Some of it may return before the unplug: the guest reports free pages.
    before = vm.status()["host_resident_bytes"]
    vm("stop", "a", "--grace", "0s")
    unplugged = vm.json("unplug", "0")["unplugged"][0]
    returned = (before - unplugged["host_after_bytes"]) / MIB
    print(
        f"  unplug {SIZE_MIB} MiB, 200 touched: device {unplugged['device_ns'] / 1e6:.0f} ms, all "
        f"{unplugged['total_ns'] / 1e6:.0f} ms, {returned:.0f} MiB returned"
    )
    check(returned >= 0.95 * 200, "the host got only", returned, "MiB of 200")
    check(vm.counter("pgmigrate_success") == migrated, "pages were migrated")
    check(vm.states() == ["absent", "in_use", "absent"], vm("list"))
    vm("stop", "b", "--grace", "0s")
    vm.all_absent()


def test_forks_stay_in_partition_and_overflow_kills_only_its_instance(vm):
    vm("plug", "--all")
    vm.hog("quiet", 100, 0)
    fork = (
        "import os, time\nfor i in range(3):\n if os.fork() == 0: break\n"
        "b = bytearray(30 << 20)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    vm("spawn", "family", "-p", "1", "--", "python3", "-c", fork)
    vm.wait(lambda: vm("output", "family").count("up") == 4, "four processes have their memory")
    anonymous = vm.node(1)["anonymous_bytes"] // MIB
    check(anonymous >= 120, "a family of four with 30 MiB each has only", anonymous, "MiB in its partition")
    processes = {instance["instance"]: instance["processes"] for instance in vm.json("stats")["instances"]}
    check(processes == {"quiet": 1, "family": 4}, processes)
    vm("unplug", "2")
    result = vm("run", "--", "/opt/mayfly/memhog", str(SIZE_MIB + 50), expect=137)
    check("filled" not in result, result)
    check(vm.states() == ["in_use", "in_use", "absent"], vm("list"))
    vm("stop", "family", "--grace", "0s")
    vm.all_absent()


def test_run_prints_output_and_returns_exit_code(vm):
    check(vm("run", "-e", "A=b", "--cwd", "/tmp", "--", "sh", "-c", "echo $A; pwd") == "b\n/tmp\n")
    vm("run", "--", "sh", "-c", "exit 7", expect=7)
    vm("run", "--", "sh", "-c", "kill -9 $$", expect=137)
    long = vm("run", "--", "seq", "20000")
    check(long.count("\n") == 20000, "lines:", long.count("\n"))
    vm("run", "--", "nosuchprogram", expect=125)
    check(vm.states() == ["absent"] * PARTITIONS, vm("list"))


def test_run_passes_output_on_whole_and_unchanged(vm):
    """More than the agent keeps, and no text."""
    block, count = bytes(range(256)) * 4096, 8
    script = f"import sys\nfor _ in range({count}): sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    command = [vm.program, "vm", "run", "--", "python3", "-c", script]
    done = subprocess.run(command, env=vm.environment, capture_output=True, timeout=PATIENCE)
    check(done.returncode == 0 and not done.stderr, done.returncode, done.stderr)
    check(done.stdout == block * count, "bytes:", len(done.stdout), "of", len(block) * count)
    check(vm.states() == ["absent"] * PARTITIONS, vm("list"))


def test_run_fails_if_its_reader_ends(vm):
    command = [vm.program, "vm", "run", "--", "yes"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=vm.environment, **pipes) as running:
        check(running.stdout.read(4) == b"y\ny\n")
        running.stdout.close()
        line = running.stderr.read()
        check(running.wait(PATIENCE) == 125 and b"cannot write the output" in line, running.returncode, line)
    check(vm.states() == ["absent"] * PARTITIONS, vm("list"))


NAMES = """
import socket
server = socket.create_server(("localhost", 0))
for name in ("localhost", "127.0.0.1"):
    socket.create_connection((name, server.getsockname()[1]), 10).close()
own = socket.gethostname()
print(own, socket.gethostbyname(own), open("/etc/hostname").read().strip() == own)
"""


def test_instance_knows_localhost_and_its_own_name(vm):
    vm("plug", "0")
    vm("spawn", "web-1", "-p", "0", "--", "python3", "-c", NAMES)
    found = vm("output", "web-1", "--follow")
    check(found == "web-1 127.0.1.1 True\n", found)
    vm.all_absent()


def test_supervisor_survives_garbage_on_control_socket(vm):
    path = str(pathlib.Path(vm.runtime.name) / "mayfly/vm/mayfly.sock")
    check("not a request" in ask(path, {"verb": "dance"})["error"])
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(os.urandom(10000).replace(b"\n", b"") + b"\n")
        check(b"not a request" in line.recv(1000))
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(b"half a reques")
    # Longer than a request may be: one answer, and the end.
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        with contextlib.suppress(OSError):
            line.sendall(b"[" * (3 << 20) + b"\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1000):
                answer += part
        check(answer.count(b"\n") <= 1 and b"not a request" in answer, answer)
    check(vm.status()["guest"]["state"] == "up")


def test_plain_and_static_modes_take_the_same_commands(host):
    for mode in ("plain", "static"):
        host.boot(*BOOT, mode=mode)
        host("plug", "0", "1")
        host.hog("a", 100, 0)
        host.refused("partition 0 is in use by instance a", "unplug", "0")
        check(host("run", "--", "echo", mode) == f"{mode}\n")
        before = host.json("stats")["guest"]["meminfo_bytes"]["MemTotal"]
        host("stop", "a", "--grace", "0s")
        host.all_absent()
        freed = (before - host.json("stats")["guest"]["meminfo_bytes"]["MemTotal"]) // MIB
        check(freed == (0 if mode == "static" else 2 * SIZE_MIB), mode, "gave back", freed, "MiB")
        host("down")


def test_partitions_of_different_sizes_have_their_own_size(host):
    # Mayfly's kernel takes whole blocks only.
    sizes = [256, 128, 192, 64] if host.mode == "nodes" else [256, 128, 384]
    words = list(BOOT)
    words[words.index("-n") : words.index("-n") + 2] = []
    words[words.index("--partition-size") + 1] = ",".join(f"{size}MiB" for size in sizes)
    if host.mode == "ranges":
        host.refused("all partitions have one size", "boot", "--mode", host.mode, *words)
        return
    status = host.boot(*words)
    check(status["layout"]["partition_bytes"] == [size * MIB for size in sizes], status["layout"])
    host("plug", "--all")
    for number, size in enumerate(sizes):
        online = host.node(number)["total_bytes"]
        check(online == size * MIB, "partition", number, "of", size, "MiB has", online, "bytes")
    small = len(sizes) - 1 if host.mode == "nodes" else 1
    migrated = host.counter("pgmigrate_success")
    host.hog("large", sizes[0] - 30, 0)
    host.hog("small", sizes[small] - 30, small)
    anonymous = host.node(small)["anonymous_bytes"] // MIB
    check(
        anonymous >= sizes[small] - 32,
        "the small instance's memory lies elsewhere; its partition has",
        anonymous,
        "MiB",
    )
    # Memory that fits into the large partition overflows the small one.
    host("stop", "small", "--grace", "0s")
    host("spawn", "over", "-p", str(small), "--", "/opt/mayfly/memhog", str(sizes[small] + 20))
    host.wait(lambda: host.states()[small] == "ready", "the instance that needs too much has ended")
    check("filled" not in host("output", "over"), "more memory than its partition has")
    check(host.states()[0] == "in_use", host("list"))
    host("stop", "large", "--grace", "0s")
    resident = host.status()["host_resident_bytes"]
    host("unplug", "--all")
    check(host.states() == ["absent"] * len(sizes), host("list"))
    check(host.counter("pgmigrate_success") == migrated, "pages were migrated")
    print(f"  QEMU had {resident // MIB} MiB, has {host.status()['host_resident_bytes'] // MIB}")
    host("down")


def test_instance_may_have_several_partitions(vm):
    vm("plug", "--all")
    argv = ["--", "/opt/mayfly/memhog", str(SIZE_MIB + 150)]
    if vm.mode != "nodes":
        vm.refused("an instance has one partition", "spawn", "a", "-p", "0,2", *argv)
        check(vm.states() == ["ready"] * PARTITIONS, vm("list"))
        return
    vm.hog("neighbour", 100, 1)
    vm.refused("partition 1 is in use by instance neighbour", "spawn", "a", "-p", "0,1", *argv)
    vm.refused("no partition 9", "spawn", "a", "-p", "0,9", *argv)
    check(vm.states() == ["ready", "in_use", "ready"], vm("list"))
    spawned = json.loads(vm("spawn", "a", "-p", "2,0", "--json", *argv))
    check((spawned["partition"], spawned["more"]) == (2, [0]), spawned)
    vm.wait(lambda: "filled" in vm("output", "a"), "it has more memory than one partition")
    anonymous = [vm.node(number)["anonymous_bytes"] // MIB for number in range(PARTITIONS)]
    check(anonymous[0] + anonymous[2] >= SIZE_MIB + 145 and anonymous[1] < 130, "memory lies", anonymous)
    check(vm.states() == ["in_use"] * PARTITIONS, vm("list"))
    for number in ("0", "2"):
        vm.refused(f"partition {number} is in use by instance a", "unplug", number)
    migrated = vm.counter("pgmigrate_success")
    vm("stop", "a", "--grace", "0s")
    check(vm.states() == ["ready", "in_use", "ready"], vm("list"))
    vm("unplug", "0", "2")
    check(vm.counter("pgmigrate_success") == migrated, "pages were migrated")
    vm("stop", "neighbour", "--grace", "0s")
    vm.all_absent()
