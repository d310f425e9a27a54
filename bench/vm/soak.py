"""The soak: partitions of one VM are plugged, used by instances that behave badly, and unplugged, at random.

Afterwards nothing may be left: every partition is absent, the guest has the memory it began with, the host
has its own back, and the kernel's log is clean. In between, every page of the guest is checked: a partition
holds its own instance's pages and no other's. Then one thing at a time, some partitions held by others, and a
model that predicts the result of each step (vm/tests/random_operations.py).
"""

import argparse
import random
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bench import command
from bench.outcome import ROOT, BenchError
from bench.vm.guest import MIB, Contender, Guest, Line, build_image

PARTITION_MIB = 128
# What `chaos` may use, so that only those which are to overflow do.
USED_MIB = 88
AT_ONCE = 4
CHECK_EVERY = 25
# Boot memory that the guest has not touched when the soak begins.
WARM_UP_SPARES_MIB = 64
HOST_SLACK_MIB = 96
GUEST_SLACK_MIB = 48
ENDS = {
    "stay": None,
    "exit": {"kind": "code", "code": 0},
    "kill": {"kind": "signal", "signal": 9},
    "crash": {"kind": "signal", "signal": 11},
    "overflow": {"kind": "overflow"},
}
SPLAT = re.compile(
    r"BUG:|WARNING:|KASAN|Oops|Bad page|general protection|possible (recursive|circular)|inconsistent lock|"
    r"suspicious RCU|Call Trace|blocked for more than|refcount_t|list_(add|del) corruption|page still charged"
)


@dataclass
class Soak:
    guest: Guest
    chance: random.Random
    lines: list[Line]
    ends: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def states(self) -> list[dict]:
        return self.guest.ask("status")["partitions"]

    def round(self, number: int, pool: ThreadPoolExecutor) -> None:
        """Operates on a few partitions at the same time, each over a connection of its own."""
        states = self.states()
        chosen = self.chance.sample(range(len(states)), min(AT_ONCE, len(states)))
        seeds = [self.chance.randrange(1 << 30) for _ in chosen]
        work = zip(self.lines, chosen, seeds, strict=False)
        jobs = [pool.submit(self.act, number, line, n, states[n], seed) for line, n, seed in work]
        for job in jobs:
            try:
                job.result()
            except BenchError as error:
                self.faults.append(f"round {number}: {error}")
        self.judge_ended()

    def act(self, number: int, line: Line, partition: int, state: dict, seed: int) -> None:
        chance = random.Random(seed)
        kind = state["state"]
        if kind == "absent":
            line.ask("plug", partition=partition)
            self.count("plugs")
        elif kind == "ready" and chance.random() < 0.6:
            name, end = f"chaos-{number}-{partition}", chance.choice(list(ENDS))
            line.spawn(name, partition, "/opt/mayfly/chaos", str(seed % 100000), str(USED_MIB), end)
            self.ends[name] = end
            self.count("spawns")
        elif kind == "ready":
            line.ask("unplug", partition=partition)
            self.count("unplugs")
        elif kind == "in_use" and chance.random() < 0.3:
            self.must_refuse_unplug(line, partition)
        elif kind == "in_use" and self.ends.get(state["instance"]) == "stay":
            grace_ms = chance.choice([0, 200])
            reason = line.ask("stop", instance=state["instance"], grace_ms=grace_ms)
            self.count("stops")
            if reason not in ({"kind": "signal", "signal": 9}, {"kind": "signal", "signal": 15}):
                self.faults.append(f"{state['instance']}: stopped, but ended with {reason}")
            self.ends.pop(state["instance"], None)

    def must_refuse_unplug(self, line: Line, partition: int) -> None:
        """Tries to unplug a partition: a used one must be refused; it may have become free in this moment."""
        try:
            line.ask("unplug", partition=partition)
            self.count("unplugs")
        except BenchError:
            self.count("refusals")

    def judge_ended(self) -> None:
        """Instances that ended by themselves must have ended in the way that they were started to."""
        running = {state.get("instance") for state in self.states()}
        for name in [one for one in self.ends if one not in running]:
            end = self.ends.pop(name)
            reason = self.guest.ask("wait", instance=name, timeout_ms=1000)
            self.count(f"ended_{end}")
            if reason != ENDS[end]:
                text = self.guest.output(name)[0][-200:].strip()
                self.faults.append(f"{name}: to end with {end}, but ended with {reason}: {text}")

    def check_pages(self) -> None:
        """Checks the owner and the node of every page of the guest."""
        first = 2 if self.guest.status["layout"]["shared_bytes"] else 1
        pairs = [
            f"{state['instance']}={first + n}"
            for n, state in enumerate(self.states())
            if state["state"] == "in_use"
        ]
        last = first + self.guest.partitions - 1
        try:
            report = self.guest.shell(f"/opt/mayfly/pagecheck {first}-{last} {' '.join(pairs)}")
        except BenchError as error:
            self.faults.append(f"pages: {error}")
            return
        self.count("page_checks")
        self.counts["pages_checked"] = self.counts.get("pages_checked", 0) + int(report.split()[1])

    def agree(self, steps: int) -> None:
        """Does random steps, and compares the VM with the model after each."""
        sys.path.insert(0, str(ROOT / "vm/tests"))
        from random_operations import Agreement, Disagreement

        agreement = Agreement(self.guest.answer, PARTITION_MIB * MIB, self.chance.randrange(1 << 30))
        try:
            agreement.run(steps)
        except Disagreement as disagreement:
            self.faults.append(f"model and VM: {disagreement}")
        for what, times in agreement.done.items():
            self.counts[f"agreed_{what.replace(' ', '_')}"] = times

    def empty(self) -> None:
        """Stops and unplugs everything."""
        for partition, state in enumerate(self.states()):
            if state["state"] == "in_use":
                self.ends.pop(state["instance"], None)
                # The instance may have ended by itself in this moment.
                try:
                    self.guest.ask("stop", instance=state["instance"], grace_ms=0)
                except BenchError as error:
                    if "no instance" not in str(error):
                        raise
            if state["state"] != "absent":
                self.guest.ask("unplug", partition=partition)

    def memory(self) -> dict[str, int]:
        """Numbers that must be equal whenever everything is empty, in MiB."""
        self.guest.shell("echo 3 >/proc/sys/vm/drop_caches")
        time.sleep(1)
        inside = self.guest.ask("memory")["guest"]["meminfo_bytes"]
        return {
            "total": inside["MemTotal"] // MIB,
            "used": (inside["MemTotal"] - inside["MemFree"] - inside["Cached"]) // MIB,
            "host": self.guest.host_guest_mib(),
        }

    def check_leaks(self, before: dict[str, int]) -> None:
        after = self.memory()
        left = [n for n, state in enumerate(self.states()) if state["state"] != "absent"]
        if left:
            self.faults.append(f"partitions not absent at the end: {left}")
        if after["total"] != before["total"]:
            self.faults.append(f"MemTotal was {before['total']} MiB and is {after['total']} MiB")
        for what, slack in (("used", GUEST_SLACK_MIB), ("host", HOST_SLACK_MIB)):
            if after[what] > before[what] + slack:
                self.faults.append(f"{what} memory was {before[what]} MiB and is {after[what]} MiB")
        print(f"soak: memory before {before}, after {after} (MiB)")

    def check_log(self) -> None:
        log = self.guest.shell("dmesg --level=emerg,alert,crit,err,warn 2>/dev/null || dmesg")
        splats = [line for line in log.splitlines() if SPLAT.search(line)]
        # The kernel prints a trace with each overflow that the soak causes.
        allowed = re.compile(r"Call Trace")
        splats = [line for line in splats if not allowed.search(line)]
        if splats:
            self.faults.append(f"{len(splats)} splats in the kernel's log; the first: {splats[0]}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/vm/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=["hotmem", "nodes"], default="hotmem")
    parser.add_argument(
        "--kernel",
        choices=["stock", "hotmem", "hotmem-debug"],
        help="default: hotmem-debug for hotmem, stock for nodes",
    )
    parser.add_argument("--partitions", type=int, default=64, metavar="N", help="in the VM (default 64)")
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="default 1000")
    parser.add_argument(
        "--steps",
        type=int,
        default=10000,
        metavar="N",
        help="compared with the model one by one (default 10000)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of all that is random (default 1)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="8 partitions, 60 rounds, no step, no debug kernel: for `make test`",
    )
    options = parser.parse_args()
    if options.quick:
        options.partitions, options.rounds, options.steps = 8, 60, 0
    if options.kernel is None:
        debug = "hotmem" if options.quick else "hotmem-debug"
        options.kernel = debug if options.mode == "hotmem" else "stock"
    return options


def warm_up(guest: Guest) -> None:
    """Touches boot memory and the shared partition, whose pages the guest keeps once touched."""
    guest.shell("find /usr /etc /var -xdev -type f -exec cat {} + >/dev/null")
    nodes = guest.ask("memory")["guest"]["nodes"]
    free_mib = next(node["free_bytes"] for node in nodes if node["node"] == 0) // MIB - WARM_UP_SPARES_MIB
    guest.spawn("warm-up", None, "/opt/mayfly/memhog", str(free_mib))
    while "filled" not in guest.output("warm-up")[0]:
        time.sleep(0.2)
    guest.stop("warm-up")


def soak(options: argparse.Namespace) -> list[str]:
    build_image(options.kernel)
    chance = random.Random(options.seed)
    contender = Contender(options.mode)
    settings = {"kernel": options.kernel, "cpus": "2"}
    if options.kernel == "hotmem-debug":
        # KASAN keeps an eighth of all memory as shadow. ACPI's interpreter would look up an interrupt for
        # each device, which MSI makes needless: minutes, under KASAN.
        settings |= {"append": "acpi=noirq", "memory": f"{1024 + options.partitions * PARTITION_MIB // 4}MiB"}
    with Guest(contender, options.partitions, PARTITION_MIB, **settings) as guest:
        lines = [guest.new_line() for _ in range(AT_ONCE)]
        soak = Soak(guest, chance, lines)
        warm_up(guest)
        for partition in range(options.partitions):
            guest.ask("plug", partition=partition)
        for partition in range(min(8, options.partitions)):
            guest.spawn(f"first-{partition}", partition, "/opt/mayfly/chaos", "7", str(USED_MIB), "exit")
        for partition in range(min(8, options.partitions)):
            guest.ask("wait", instance=f"first-{partition}", timeout_ms=120000)
        soak.empty()
        before = soak.memory()
        begin = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for number in range(1, options.rounds + 1):
                soak.round(number, pool)
                if number % CHECK_EVERY == 0 or number == options.rounds:
                    soak.check_pages()
                    took = time.monotonic() - begin
                    counts = ", ".join(f"{key} {value}" for key, value in sorted(soak.counts.items()))
                    print(
                        f"soak: round {number} of {options.rounds} ({took:.0f} s): {counts}",
                        file=sys.stderr,
                        flush=True,
                    )
                if len(soak.faults) > 20:
                    break
        soak.empty()
        soak.agree(options.steps)
        soak.check_leaks(before)
        soak.check_log()
        print("soak: " + ", ".join(f"{key} {value}" for key, value in sorted(soak.counts.items())))
        return soak.faults


def main() -> int:
    options = arguments()
    return command.outcome(lambda: report(options))


def report(options: argparse.Namespace) -> int:
    """Soaks and prints the result; the exit status is 1 if there is a fault."""
    faults = soak(options)
    for fault in faults:
        print(f"soak: FAULT: {fault}")
    outcome = f"{len(faults)} faults" if faults else "no fault"
    what = f"{options.rounds} rounds, {options.partitions} partitions, mode {options.mode}, {options.kernel}"
    print(f"soak: {what}: {outcome} (seed {options.seed})")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
