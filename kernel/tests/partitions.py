"""A VM with HotMem's partitions, for tests: plugged and unplugged from outside, used by hotmem.c inside."""

import random
import subprocess
import time

from guest import MIB, Guest, one_device_args, partition_args

SIZE = 256  # MiB of a partition
SHARED = 256  # MiB of the shared one
FIRST = 2  # node of the first
# Timeout for everything that must happen: the debug kernel on a busy machine is slow.
PATIENCE = 900


def until(what, condition):
    """Waits until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
        time.sleep(0.02)


def disk(folder):
    """An image of a file system with one file of 8 MiB."""
    content, image = folder / "content", folder / "disk"
    content.mkdir()
    (content / "file").write_bytes(random.randbytes(8 * MIB))
    subprocess.run(["truncate", "-s", "16M", image], check=True)
    subprocess.run(["/sbin/mke2fs", "-q", "-t", "ext2", "-d", content, image], check=True)
    return image


class Partitions:
    """Boots the VM, in which each partition has a device; ends with end()."""

    parameters = ""

    @staticmethod
    def memory(count):
        # Boot memory holds the page structs of all partitions; under KASAN also an eighth of their size, and
        # freed objects that it keeps, up to 1/32 of all memory. Slabs grow with what there is.
        return partition_args(count, SIZE, SHARED, 768 + count * SIZE // 4, 2)

    def __init__(self, kernel, programs, image, count, append):
        self.nodes = range(FIRST, FIRST + count)
        qemu = self.memory(count)
        qemu += ["-drive", f"if=none,id=disk,format=raw,readonly=on,file={image}"]
        qemu += ["-device", "virtio-blk-pci,drive=disk,addr=5"]
        # ACPI's interpreter would look for each device's interrupt, which MSI makes needless: minutes, under
        # KASAN. `quiet` would keep warnings from the console, too.
        append = f"loglevel=5 acpi=noirq hotmem.partitions={count} {self.parameters} {append}"
        files = {f"bin/{program.name}": program for program in programs}
        self.guest = Guest(kernel / "bzImage", b"", files, qemu, append, drive=True)
        self.total = self.memory_total()

    def end(self):
        self.guest.__exit__()

    def check_as_it_was(self):
        """Checks that everything is as before a test, and that the kernel has logged no complaint."""
        assert not self.guest.splats
        assert {row[:4] for row in self.partitions().values()} == {("absent", 0, 0, 0)}
        counters = self.counters()
        assert counters["releases"] == counters["assigns"]
        assert self.memory_total() == self.total

    def case(self, name, node, *args):
        """Runs a case of hotmem.c, which prints nothing on success."""
        words = " ".join(str(word) for word in (name, node, *args))
        output = self.guest.run(f"hotmem {words} || echo FAILED", check=False)
        assert not output.strip(), f"hotmem {words}: {output}"

    def start(self, name, node, *args):
        """Runs a case in the background; returns its id. Output in a tmpfs would stay in its partition."""
        words, pipe = " ".join(str(word) for word in (name, node, *args)), f"/tmp/pipe{node}"
        self.guest.run(f"rm -f {pipe}; mkfifo {pipe}; cat {pipe} >/tmp/out{node} 2>&1 &")
        return int(self.guest.run(f"hotmem {words} > {pipe} 2>&1 & echo $!"))

    def wait_out(self, node, text):
        until(
            f"node {node} says {text}",
            lambda: text in self.guest.run(f"cat /tmp/out{node}", check=False),
        )

    def hold(self, node, mib):
        """Starts a process that has this much of a partition; returns its id."""
        pid = self.start("hold", node, mib)
        self.wait_out(node, "holding")
        return pid

    def kill(self, pid):
        self.guest.run(f"kill -9 {pid}; while [ -d /proc/{pid} ]; do sleep 0.02; done", check=False)

    def partitions(self):
        """The kernel's table: for each node its state, users, pages used, pages in total, overflows."""
        rows = [line.split() for line in self.guest.run("cat /sys/kernel/mm/hotmem/partitions").splitlines()]
        # The kernel may log a line in between.
        rows = [row for row in rows if len(row) == 6 and row[0].isdigit()]
        return {int(row[0]): (row[1], *map(int, row[2:])) for row in rows}

    def counters(self):
        lines = self.guest.run("cat /sys/kernel/mm/hotmem/counters").splitlines()
        return {line.split()[0]: int(line.split()[1]) for line in lines}

    def state(self, node, wanted):
        """QEMU's size changes before the guest is done."""
        until(f"partition {node} is {wanted}", lambda: self.partitions().get(node, ("",))[0] == wanted)

    def device(self, node):
        """Its name, and what to request of it for the node to be absent and whole."""
        return f"part{node}", 0, SIZE * MIB

    def plug(self, node):
        name, _, whole = self.device(node)
        self.guest.resize(name, whole)
        self.state(node, "ready")

    def unplug(self, node):
        """Unplugs a partition, and checks that this moves no page."""
        before = self.migrated()
        name, absent, _ = self.device(node)
        self.guest.resize(name, absent)
        self.state(node, "absent")
        assert self.migrated() == before

    def refuse_to_unplug(self, node):
        """Requests an unplug, waits until the guest refuses it, and cancels it."""
        refused = self.counters()["unplugs_refused"]
        name, absent, whole = self.device(node)
        self.guest.request(name, absent)
        until("an unplug is refused", lambda: self.counters()["unplugs_refused"] > refused)
        assert self.guest.size(name) == whole
        self.guest.request(name, whole)

    def migrated(self):
        return int(self.guest.run("grep pgmigrate_success /proc/vmstat").split()[1])

    def memory_total(self):
        return int(self.guest.run("grep MemTotal /proc/meminfo").split()[1])

    def boot_memory_free_mib(self):
        """Free memory of node 0 and the shared partition, in MiB."""
        lines = self.guest.run("grep -h MemFree /sys/devices/system/node/node[01]/meminfo").splitlines()
        return sum(int(line.split()[3]) for line in lines) // 1024


class Ranges(Partitions):
    """The partitions are ranges of one device, in a VM without any NUMA node."""

    parameters = f"hotmem.range={SIZE}M hotmem.shared_range={SHARED}M"

    @staticmethod
    def memory(count):
        return one_device_args(SHARED + count * SIZE, 768 + count * SIZE // 4, 2)

    def __init__(self, *args):
        super().__init__(*args)
        # QEMU lets the guest use little more of the device than it ever requested: here once all of it. The
        # kernel chooses what to plug and what to unplug.
        for mib, state in ((SHARED + len(self.nodes) * SIZE, "ready"), (SHARED, "absent")):
            self.guest.resize("all", mib * MIB)
            for node in self.nodes:
                self.state(node, state)
        self.total = self.memory_total()

    def device(self, node):
        self.guest.run(f"echo {node} > /sys/kernel/mm/hotmem/range_node")
        others = sum(row[3] > 0 for at, row in self.partitions().items() if at != node)
        absent = (SHARED + others * SIZE) * MIB
        return "all", absent, absent + SIZE * MIB
