"""A VM under test, driven through `mayfly vm boot` and its control socket: a JSON line in, one out."""

import base64
import json
import os
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.outcome import ROOT, BenchError
from bench.processes import end, last_words

MIB = 1 << 20
PATIENCE_S = 900


@dataclass(frozen=True)
class Contender:
    """A mode, and the kernel it runs on: Mayfly's for all, so that only the mode differs; or Debian's."""

    name: str

    @property
    def mode(self) -> str:
        return self.name.partition(":")[0]

    @property
    def kernel(self) -> str:
        return "stock" if self.name.endswith(":debian") else "hotmem"

    @property
    def key(self) -> str:
        return self.name.replace(":", "_")

    @property
    def elastic(self) -> bool:
        return self.mode != "static"


def mayfly() -> Path:
    """The command under test: $MAYFLY, or the one this repository builds."""
    path = Path(os.environ.get("MAYFLY", ROOT / "target" / "release" / "mayfly"))
    if not path.is_file():
        raise BenchError(f"{path}: not there; build it with: cargo build --release")
    return path


def build_image(kernel: str) -> None:
    """Builds the image; the builder prints its progress."""
    command = [str(mayfly()), "vm", "image", "--kernel", kernel]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise BenchError(f"the image with kernel {kernel} could not be built: {' '.join(command)}")


class Line:
    """A connection to a VM's supervisor. Requests on one are serial; connections are concurrent."""

    def __init__(self, label: str, path: str):
        self.label = label
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.stream = self.socket.makefile("rw")

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def answer(self, command: dict) -> dict:
        self.stream.write(json.dumps(command) + "\n")
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            raise BenchError(f"{self.label}: the VM ended")
        return json.loads(line)

    def ask(self, verb: str, **what: Any) -> Any:
        answer = self.answer({"verb": verb, **what})
        if "error" in answer:
            raise BenchError(f"{self.label}: {verb}: {answer['error']}")
        return answer["ok"]

    def spawn(self, name: str, partition: int | None, *argv: str, cpus: tuple[int, ...] = ()) -> None:
        what = {"instance": name, "partition": partition, "argv": list(argv), "cpus": list(cpus)}
        self.ask("spawn", outside=partition is None, spawn=what)


class Guest:
    """A VM from its boot to the end of a `with` block. Times of its calls are the host's, in milliseconds."""

    accelerators: ClassVar[set[str]] = set()  # the accelerators of this run's VMs
    accelerator: ClassVar[str] = "auto"  # the one requested

    def __init__(self, contender: Contender, partitions: int, partition_mib: int, **settings: str):
        self.contender, self.partition_mib, self.partitions = contender, partition_mib, partitions
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the VM)
        command = [str(mayfly()), "vm", "boot", "--json", "--name", f"bench-{os.getpid()}"]
        command += ["--mode", contender.mode, "--accelerator", Guest.accelerator]
        # Without reporting of free pages, so that all memory returns by the unplug that is measured.
        command += ["--keep-free-memory"]
        command += ["--partitions", str(partitions), "--partition-size", f"{partition_mib}MiB"]
        # A full VM must have no slack, which the shared partition's memory would be in mode `plain`.
        options = {"shared_size": "0MiB" if contender.mode in ("plain", "static") else "256MiB"}
        options |= {"patience": f"{PATIENCE_S}s", "kernel": contender.kernel} | settings
        if "image" in settings:
            del options["kernel"]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", value]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise BenchError(f"{contender.name}: the VM did not boot: {last_words(self.errors.read())}")
        self.status = json.loads(line)
        self.accelerators.add(self.status["accelerator"])
        self.pid = self.status["qemu_pid"]
        self.line = self.new_line()
        self.tools = 0

    def new_line(self) -> Line:
        return Line(self.contender.name, self.status["socket"])

    def __enter__(self) -> "Guest":
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process, 30)
        self.line.close()
        self.errors.close()

    def ask(self, verb: str, **what: Any) -> Any:
        """Sends one request to the VM's supervisor."""
        return self.line.ask(verb, **what)

    def answer(self, command: dict) -> dict:
        """The supervisor's answer, also if it is a refusal."""
        return self.line.answer(command)

    def warm_up(self) -> None:
        """Plugs and unplugs an empty partition a few times: emulators translate code when it first runs."""
        for _ in range(5):
            self.ask("plug", partition=0)
            self.ask("unplug", partition=0)

    def plug_all(self) -> float:
        """Plugs every partition; returns the mean time until an instance can be started in one."""
        times = [self.ask("plug", partition=n)["total_ns"] / 1e6 for n in range(self.partitions)]
        return sum(times) / len(times)

    def spawn(self, name: str, partition: int | None, *argv: str, cpus: tuple[int, ...] = ()) -> None:
        self.line.spawn(name, partition, *argv, cpus=cpus)

    def stop(self, name: str) -> dict:
        return self.ask("stop", instance=name, grace_ms=0)

    def output(self, name: str, start: int = 0) -> tuple[str, int]:
        answer = self.ask("output", instance=name, **{"from": start})
        return base64.b64decode(answer["bytes"]).decode(errors="replace"), answer["next"]

    def shell(self, script: str) -> str:
        """Runs a script as root in the guest, outside all partitions."""
        self.tools += 1
        name = f"tool-{self.tools}"
        self.spawn(name, None, "/bin/sh", "-c", script)
        ended = self.ask("wait", instance=name, timeout_ms=PATIENCE_S * 1000)
        text, _ = self.output(name)
        if not ended or ended.get("code") != 0:
            raise BenchError(f"{self.contender.name}: in the guest: {script[:60]}: {ended}: {text[-200:]}")
        return text

    def fill(self, partitions: list[int], mib: int, cpus: tuple[int, ...] = ()) -> None:
        """Starts a memhog in each of these partitions, all at one time, and waits until all hold `mib`."""
        for partition in partitions:
            self.spawn(f"hog-{partition}", partition, "/opt/mayfly/memhog", str(mib), cpus=cpus)
        for partition in partitions:
            self.wait_filled(f"hog-{partition}")

    def wait_filled(self, hog: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "filled" not in self.output(hog)[0]:
            ended = self.ask("wait", instance=hog, timeout_ms=100)
            if ended or time.monotonic() > deadline:
                why = f"ended: {ended}" if ended else f"not done after {PATIENCE_S} s"
                raise BenchError(f"{self.contender.name}: {hog} did not fill its memory: {why}")

    def migrated_pages(self) -> int:
        """Pages that the guest's kernel has moved since boot."""
        return self.ask("memory")["guest"]["vmstat"]["pgmigrate_success"]

    def serve_unplug_on(self, cpu: int) -> None:
        """Directs the virtio-mem interrupts, and with them the driver's work, to one vCPU (HotMem §5.4).

        Before anything is plugged: the kernel moves an interrupt when it next comes. The agent runs on CPU 0,
        except in mode `nodes`, where it takes memory offline as part of the unplug.
        """
        agents = 1 << cpu if self.contender.mode == "nodes" else 1
        self.shell(
            "for device in /sys/bus/virtio/drivers/virtio_mem/virtio*; do "
            'for irq in $(grep -wE "${device##*/}" /proc/interrupts | cut -d: -f1); do '
            f"echo {1 << cpu:x} >/proc/irq/$irq/smp_affinity; done; done; "
            f"for agent in $(cat /sys/fs/cgroup/agent/cgroup.procs); do taskset -a -p {agents:x} $agent; done"
        )

    def vcpu_s(self, cpu: int) -> float:
        """CPU time that the host has given to a vCPU's thread."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().startswith(f"CPU {cpu}/"):
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        raise BenchError(f"QEMU has no thread for vCPU {cpu}")

    def host_guest_mib(self) -> int:
        """The host's memory behind the guest's: of QEMU's, the large mappings that hold no code.

        QEMU's whole resident memory also grows with the code that it translates.
        """
        total = 0
        large = False
        with open(f"/proc/{self.pid}/smaps") as smaps:
            for line in smaps:
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    first, last = (int(part, 16) for part in words[0].split("-"))
                    large = last - first >= 100 * MIB and "x" not in words[1]
                elif large and words[0] == "Rss:":
                    total += int(words[1])
        return total // 1024

    def unplug(self, partition: int) -> dict[str, float]:
        """Unplugs an empty partition; returns its latency and its costs."""
        moved = self.migrated_pages()
        report = self.ask("unplug", partition=partition)
        returned = report["host_before_bytes"] - report["host_after_bytes"]
        return {
            "unplug_ms": report["device_ns"] / 1e6,
            "whole_ms": report["total_ns"] / 1e6,
            "migrated_pages": self.migrated_pages() - moved,
            "returned_share": returned / (self.partition_mib * MIB),
        }
