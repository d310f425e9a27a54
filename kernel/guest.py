"""Runs a kernel in QEMU for the tests of this folder: an initramfs of busybox and a few given files, the
console's lines, and QMP to plug and unplug memory. Any complaint of the kernel is a failure.

The guest's /init runs the script `main` and reports its exit status on the console. A test that drives the
guest from outside talks to it through a virtio-serial port: each line it sends is run by a shell, `run()`
returns what that printed."""

import gzip
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MIB = 1 << 20
SPLAT = re.compile(
    r"\bBUG\b[: ]|WARNING: |KASAN|UBSAN|Oops|general protection|INFO: task .* blocked|detected stall|"
    r"possible (recursive|circular)|inconsistent lock|[bB]ad page|Kernel panic|soft lockup|INFO: lockdep"
)
STATUS = "guest exit status "
UP = "guest is up"
# Linux patches its own code while it runs: it writes a breakpoint over the instruction, then the new
# instruction over the breakpoint. QEMU's multi-threaded translation may still run the breakpoint after it was
# removed; Linux then finds none registered there and panics. It patches most during boot: about 1 boot in 40
# ends so, with Debian's kernel and with ours. The kernel is not at fault, so such a boot does not count.
STALE_BREAKPOINT = "Oops: int3"
BOOTS = 4
# A debug kernel with many partitions on a busy machine boots for minutes, and one test may take as long.
BOOT_SECONDS = ANSWER_SECONDS = 1800

# `stty sane` waits until the console has sent everything: poweroff does not.
INIT = """#!/bin/sh
export PATH=/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs tmp /tmp
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
mount -t tracefs trace /sys/kernel/tracing 2>/dev/null
mount -t cgroup2 cgroup /sys/fs/cgroup 2>/dev/null
cd /
echo guest is up
/main
echo "guest exit status $?"
stty sane
sleep 0.2
poweroff -f
"""

# Runs each line that arrives on the port; ends its answer with a line of a NUL and the exit status.
SERVE = """#!/bin/sh
exec 3<>/dev/vport0p1
stty -F /dev/vport0p1 raw 2>/dev/null
echo ready >&3
while read -r line <&3; do
    [ "$line" = quit ] && exit 0
    sh -c "$line" </dev/null >/tmp/answer 2>&1
    status=$?
    cat /tmp/answer >&3
    printf '\\000%d\\n' $status >&3
done
"""


class GuestError(Exception):
    pass


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """A "newc" archive: needs neither root nor the cpio program."""
    out = bytearray()

    def entry(name: str, mode: int, data: bytes, major: int = 0, minor: int = 0) -> None:
        head = [0, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name) + 1, 0]
        out.extend(b"070701" + b"".join(b"%08X" % n for n in head) + name.encode() + b"\0")
        out.extend(b"\0" * (-len(out) % 4) + data)
        out.extend(b"\0" * (-len(out) % 4))

    folders = {"bin", "proc", "sys", "dev", "tmp"}
    for name in files:
        parent = Path(name).parent
        folders.update(str(folder) for folder in [parent, *parent.parents] if str(folder) != ".")
    for folder in sorted(folders):
        entry(folder, stat.S_IFDIR | 0o755, b"")
    entry("dev/console", stat.S_IFCHR | 0o600, b"", 5, 1)
    for name, (mode, data) in files.items():
        entry(name, mode, data)
    entry("TRAILER!!!", 0, b"")
    return bytes(out)


def initramfs(main: bytes, files: dict[str, Path]) -> bytes:
    busybox = Path("/bin/busybox")
    if not busybox.exists():
        raise GuestError("busybox is missing: install Debian's package busybox-static (make setup)")
    regular, link = stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
    content = {"bin/busybox": (regular, busybox.read_bytes()), "init": (regular, INIT.encode())}
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    for applet in applets.split():
        if applet != "busybox":
            content[f"bin/{applet}"] = (link, b"busybox")
    for name, path in files.items():
        content[name] = (regular, path.read_bytes())
    content["main"] = (regular, main)
    return gzip.compress(cpio(content), 1)


def accelerator() -> str:
    """Emulation works everywhere; MAYFLY_ACCEL=kvm is for machines where guests boot under KVM."""
    return os.environ.get("MAYFLY_ACCEL", "tcg,thread=multi")


def partition_args(
    partitions: int, size: int, shared: int, boot: int, cpus: int, device: str = ""
) -> list[str]:
    """One NUMA node per partition. QEMU describes an empty node only if an absent CPU belongs to it."""
    nodes = 1 + (1 if shared else 0) + partitions
    first = 2 if shared else 1
    total = boot + shared + partitions * size
    args = ["-m", f"{boot}M,slots=4,maxmem={total + 4096}M"]
    args += ["-smp", f"{cpus},maxcpus={cpus + nodes - 1},sockets={cpus + nodes - 1},cores=1,threads=1"]
    args += ["-object", f"memory-backend-ram,id=boot,size={boot}M", "-numa", "node,nodeid=0,memdev=boot"]
    args += [word for node in range(1, nodes) for word in ("-numa", f"node,nodeid={node}")]
    for cpu in range(cpus):
        args += ["-numa", f"cpu,node-id=0,socket-id={cpu}"]
    for node in range(1, nodes):
        args += ["-numa", f"cpu,node-id={node},socket-id={cpus + node - 1}"]
    names = ([("shared", 1, shared, shared)] if shared else []) + [
        (f"part{first + i}", first + i, size, 0) for i in range(partitions)
    ]
    for i, (name, node, mib, requested) in enumerate(names):
        args += ["-object", f"memory-backend-memfd,id=m-{name},size={mib}M,share=on,reserve=off"]
        slot = f"{8 + i // 8:x}.{i % 8}"
        args += [
            "-device",
            f"virtio-mem-pci,id={name},memdev=m-{name},node={node},requested-size={requested}M,"
            f"multifunction=on,addr={slot}{device}",
        ]
    return args


def one_device_args(size: int, boot: int, cpus: int) -> list[str]:
    """One virtio-mem device, and no NUMA nodes."""
    args = ["-m", f"{boot}M,slots=4,maxmem={boot + size + 4096}M", "-smp", str(cpus)]
    args += ["-object", f"memory-backend-memfd,id=m-all,size={size}M,share=on,reserve=off"]
    return [*args, "-device", "virtio-mem-pci,id=all,memdev=m-all,requested-size=0,addr=8"]


def run_script(
    kernel: Path, script: str, files: dict[str, Path], qemu: list[str], timeout: float, append: str = ""
) -> list[str]:
    """Runs a script in a guest and returns its console; if it fails, prints the console first."""
    for _ in range(BOOTS):
        with Guest(kernel, f"#!/bin/sh\n{script}\n".encode(), files, qemu, append) as guest:
            status = guest.wait(timeout)
        # The kernel also patches itself later, when a feature is used for the first time.
        if not guest.has_slipped():
            break
    up = next((at for at, line in enumerate(guest.console) if UP in line), 0)
    assert status == 0, f"status {status}\n" + "\n".join(guest.console[up:])
    return guest.console


class Guest:
    """A running VM. As a context manager it ends with the block."""

    def __init__(
        self,
        kernel: Path,
        main: bytes,
        files: dict[str, Path],
        qemu: list[str],
        append: str = "",
        quiet: bool = False,
        drive: bool = False,
    ):
        if not shutil.which("qemu-system-x86_64"):
            raise GuestError("QEMU is missing: install Debian's package qemu-system-x86 (make setup)")
        self.folder = tempfile.TemporaryDirectory(prefix="guest-")
        at = Path(self.folder.name)
        (at / "initrd").write_bytes(initramfs(SERVE.encode() if drive else main, files))
        self.quiet = quiet
        command = ["qemu-system-x86_64", "-accel", accelerator(), "-cpu", "max", "-no-reboot"]
        command += ["-nodefaults", "-display", "none", "-serial", "stdio"]
        command += ["-kernel", str(kernel), "-initrd", str(at / "initrd")]
        command += ["-append", f"console=ttyS0 panic=-1 oops=panic no_timer_check mitigations=off {append}"]
        command += ["-qmp", f"unix:{at}/qmp,server=on,wait=off"]
        if drive:
            command += ["-device", "virtio-serial-pci,addr=4", "-device", "virtserialport,chardev=port,nr=1"]
            command += ["-chardev", f"socket,id=port,path={at}/port,server=on,wait=off"]
        try:
            for boot in range(1, BOOTS + 1):
                self._start(command + qemu)
                if self._comes_up() or boot == BOOTS or not self.has_slipped():
                    break
                print("guest: the emulator ran a removed breakpoint; booting again", file=sys.stderr)
                self.stop()
            self._connect_to(at, drive)
        except BaseException:
            self.stop()
            raise

    def _start(self, command: list[str]) -> None:
        self.splats: list[str] = []
        self.console: list[str] = []
        self.status: int | None = None
        self.up = threading.Event()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _comes_up(self) -> bool:
        """Whether user space started; the kernel may die before."""
        self.up.wait(BOOT_SECONDS)
        return any(UP in line for line in self.console)

    def _connect_to(self, at: Path, drive: bool) -> None:
        self.qmp_socket = self._connect(at / "qmp")
        self.qmp_file = self.qmp_socket.makefile("rwb")
        self.qmp_file.readline()
        self.qmp("qmp_capabilities")
        if drive:
            self.port = self._connect(at / "port")
            self.port.settimeout(ANSWER_SECONDS)
            self.port_file = self.port.makefile("rwb")
            line = b""
            while b"ready" not in line:
                line = self.port_file.readline()
                if not line:
                    raise GuestError("the guest did not start:\n" + "\n".join(self.console[-20:]))

    def _read(self) -> None:
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self.console.append(line)
            if not self.quiet:
                print(line, flush=True)
            if SPLAT.search(line):
                self.splats.append(line)
            if STATUS in line:
                self.status = int(line.split(STATUS)[1].split()[0])
            if UP in line:
                self.up.set()
        self.up.set()

    def _connect(self, path: Path) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        for _ in range(2400):
            try:
                sock.connect(str(path))
                return sock
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        self.reader.join(1)
        raise GuestError("QEMU did not start:\n" + "\n".join(self.console[-20:]))

    def qmp(self, command: str, **arguments: object) -> object:
        self.qmp_file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self.qmp_file.flush()
        while True:
            answer = json.loads(self.qmp_file.readline())
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise GuestError(f"{command}: {answer['error']['desc']}")

    def size(self, device: str) -> int:
        return self.qmp("qom-get", path=f"/machine/peripheral/{device}", property="size")

    def request(self, device: str, size: int) -> None:
        self.qmp("qom-set", path=f"/machine/peripheral/{device}", property="requested-size", value=size)

    def resize(self, device: str, size: int, timeout: float = 900) -> float:
        """Seconds until the hypervisor sees the new size."""
        start = time.monotonic()
        self.request(device, size)
        while self.size(device) != size:
            if time.monotonic() > start + timeout:
                raise GuestError(f"{device} has {self.size(device)} bytes, not {size}, after {timeout} s")
            time.sleep(0.0005)
        return time.monotonic() - start

    def run(self, line: str, check: bool = True) -> str:
        """Runs a line of shell in the guest and returns what it printed."""
        assert "\n" not in line
        self.port_file.write(line.encode() + b"\n")
        self.port_file.flush()
        answer = b""
        while b"\0" not in answer:
            part = self.port_file.readline()
            if not part:
                raise GuestError("the guest has ended:\n" + "\n".join(self.console[-30:]))
            answer += part
        text, status = answer.rsplit(b"\0", 1)
        if check and int(status):
            raise GuestError(f"`{line}` in the guest: status {int(status)}: {text.decode(errors='replace')}")
        return text.decode(errors="replace")

    def wait(self, timeout: float) -> int:
        """The guest's exit status; 124 if it takes too long, 125 if the kernel complained or died."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            print(f"guest: still running after {timeout:.0f} s", file=sys.stderr)
            return 124
        self.reader.join(10)
        if self.splats:
            print("guest: the kernel complained: " + self.splats[0], file=sys.stderr)
            return 125
        if self.status is None:
            print("guest: the kernel stopped before the test ended", file=sys.stderr)
            return 125
        return self.status

    def has_slipped(self) -> bool:
        """Whether the emulator was at fault (STALE_BREAKPOINT)."""
        return any(STALE_BREAKPOINT in line for line in self.console)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join(10)

    def __enter__(self) -> "Guest":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.folder.cleanup()
