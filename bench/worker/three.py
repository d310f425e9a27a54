"""Three workers, each in a network namespace of its own, behind HAProxy with the configuration that
deploy/haproxy has. A user that is not root has three ports of the loopback in place of the namespaces."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.outcome import ROOT, BenchError
from bench.processes import ask, free_port, last_words
from bench.worker.worker import MAYFLY, START_S, Worker

sys.path.append(str(ROOT / "worker" / "tests"))
import balancer  # noqa: E402

NUMBERS = (0, 1, 2)
ROUND_ROBIN = {
    "balance": "balance roundrobin",
    "hash_type": "# without a hash",
    "hash_balance_factor": "# without a hash",
}


def end_at_once(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def have_namespaces() -> bool:
    return os.geteuid() == 0 and Path("/sys/class/net").exists()


class Machines:
    """Workers with the same template and arguments, each with a state; one that has ended may be replaced."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, template: Path, arguments: tuple[str, ...]):
        self.stack, self.folder, self.template, self.arguments = stack, folder, template, arguments
        self.places = [self.place(number) for number in NUMBERS]
        self.started = 0
        self.workers = [self.start(number) for number in NUMBERS]
        self.ended_logs: list[str] = []

    def place(self, number: int) -> tuple[list[str], str]:
        """The command line that enters the machine's network, and the address of its worker."""
        if not have_namespaces():
            return [], f"127.0.0.1:{free_port()}"
        # Several runs may be under way.
        own, address = f"mayfly-{os.getpid()}-{number}", f"10.{os.getpid() % 200 + 20}.{number}"
        link = f"mf{os.getpid()}-{number}"  # at most 15 characters
        ip = lambda *words: ask(["ip", *words], "ip", 60)  # noqa: E731
        ip("netns", "add", own)
        self.stack.callback(subprocess.run, ["ip", "netns", "del", own], check=False)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", own)
        # With its namespace the kernel would remove it some time later.
        self.stack.callback(subprocess.run, ["ip", "link", "del", link], check=False)
        ip("address", "add", f"{address}.1/24", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", own, "address", "add", f"{address}.2/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", own, "link", "set", device, "up")
        # `ip netns exec` would hide the host's /sys, where the cgroups are.
        return ["nsenter", f"--net=/run/netns/{own}"], f"{address}.2:8080"

    def start(self, number: int) -> Worker:
        enter, listen = self.places[number]
        self.started += 1
        log = self.folder / f"log-{self.started}"
        state = self.folder / f"state-{number}"
        command = [*enter, MAYFLY, "up", self.template, "--listen", listen, "--state", state, *self.arguments]
        more = {"env": os.environ | {"NO_COLOR": "1"}, "stdin": subprocess.DEVNULL}
        with log.open("wb") as file:
            process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, **more)
        self.stack.callback(end_at_once, process)
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"serving Lambda's API on http://(\S+)\n", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"mayfly up did not start: {last_words(log.read_text())}")
            time.sleep(0.02)
        return Worker(process, found[1], log)

    def end(self, number: int, how: signal.Signals) -> int:
        process = self.workers[number].process
        process.send_signal(how)
        return process.wait(120)

    def replace(self, number: int) -> None:
        """Another worker with the address and the state of one that has ended."""
        self.ended_logs.append(self.workers[number].log.read_text())
        self.workers[number] = self.start(number)

    def log(self) -> str:
        """Of all workers, also of those that were replaced."""
        return "\n".join([*self.ended_logs, *(worker.log.read_text() for worker in self.workers)])


@contextlib.contextmanager
def three_machines(template: Path, *arguments: str, **changed: str) -> Iterator[tuple[Machines, str]]:
    """The machines, and the address of HAProxy before them; `changed` are settings of its file."""
    if not balancer.PROGRAM:
        raise BenchError("haproxy is not there: make setup installs it")
    if not MAYFLY.exists():
        raise BenchError(f"{MAYFLY}: not built: run 'make build'")
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        place.chmod(0o755)
        machines = Machines(stack, place, template, arguments)
        front = f"127.0.0.1:{free_port()}"
        addresses = [address for _, address in machines.places]
        stack.enter_context(balancer.balanced(place, addresses, front, **changed))
        yield machines, front
