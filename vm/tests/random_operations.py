"""Random plugs, spawns, stops, unplugs, kills and holds of one VM, one after the other, and a model that
predicts the result of each. After every step the model, the host's record and the guest's memory must agree.

QEMU and the agent are also stopped for a while in the middle of an operation. It must end as if they had not
been, and after the pause nothing may stay in between for longer than the pause was. And QEMU is killed in the
middle of an operation; then another VM boots.

`vm/tests/run` does 120 steps, `make soak` more, `bench/vm/soak` 10,000 in a VM that is not killed."""

import base64
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

MIB = 1 << 20
PATIENCE = 300
# By the word sent to an instance: how it must end.
ENDS = {
    "exit": {"kind": "code", "code": 3},
    "kill": {"kind": "signal", "signal": 9},
    "overflow": {"kind": "overflow"},
}
# Weights of the steps. SELDOM: the intervals, in steps, of those that take long: they fill a partition, or
# wait for the end of a pause, a new agent or a new VM.
STEPS = {"plug": 5, "unplug": 5, "spawn": 8, "stop": 3, "exit": 1, "kill": 2, "take": 3, "drop": 3}
SELDOM = {"pause_qemu": 15, "pause_agent": 25, "overflow": 40, "restart": 90, "agent": 100}
# The length of a pause, and how soon after an operation has begun it comes.
PAUSE_S, SOON_S = (0.2, 1.5), (0, 0.3)
# By the state of a partition: the operation on it that a pause interrupts.
PAUSED = {"absent": "plug", "ready": "unplug", "in_use": "stop", "held": "unplug"}
# What a busy machine may add to the longest time that an operation has taken before.
SLACK_S = 5
AGENT = (
    "for pid in $(cat /proc/1/task/1/children); do "
    'case $(tr "\\0" " " </proc/$pid/cmdline) in vm-agent*) break;; esac; done; '
)
REPORT_EVERY = 500
CHANGING = {"plug", "unplug", "spawn", "stop", "input"}


class Disagreement(Exception):
    """The model and the VM differ."""


class Agreement:
    """A VM, and the model of its expected state."""

    def __init__(
        self,
        ask: Callable[[dict], dict],
        partition_bytes: int,
        seed: int,
        boot: Callable[[], None] | None = None,
    ):
        """`ask` sends a command to the control socket and returns the whole answer; `boot` waits until no
        VM runs any more and boots another, to which `ask` sends from then on."""
        self.ask, self.partition_bytes, self.dice, self.boot = ask, partition_bytes, random.Random(seed), boot
        count = len(self.must({"verb": "status"})["partitions"])
        self.states = ["absent"] * count
        self.number = 0  # of the step
        # By instance: its partition, and the descriptor of its pipe.
        self.running: dict[str, tuple[int, int]] = {}
        # Partitions whose pages the taker holds: it has the pipe of an instance that is or was there.
        self.taken: set[int] = set()
        self.taker: str | None = None
        self.done: Counter[str] = Counter()
        # The longest time of each operation, and the longest that one took beyond its pause.
        self.longest_s: Counter[str] = Counter()
        self.late_s = 0.0
        # The last requests that change something, to debug a disagreement.
        self.recent: deque[str] = deque(maxlen=8)

    def must(self, command: dict):
        answer = self.send(command)
        if "error" in answer:
            raise self.differs(f"{command}: {answer['error']}")
        return answer["ok"]

    def send(self, command: dict) -> dict:
        if command["verb"] in CHANGING:
            self.recent.append(f"{command['verb']} {[*command.values()][1:]}")
        return self.ask(command)

    def differs(self, what: str) -> Disagreement:
        return Disagreement(f"{what}\n  step {self.number}, after: " + "; ".join(self.recent))

    def expect(self, command: dict, allowed: bool, what: str):
        """Sends a request that must succeed, or must be refused."""
        answer = self.send(command)
        if ("ok" in answer) != allowed:
            raise self.differs(f"{what}, and the model is {self.states}: {answer}")
        self.done[what if allowed else f"{what} refused"] += 1
        return answer.get("ok")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise self.differs(
                    f"never: {what}; the model is {self.states}, the VM {self.actual_states()}"
                )
            time.sleep(0.02)

    def run(self, steps: int) -> Counter[str]:
        """Does this many steps, then empties the VM; returns how often each operation was done."""
        names, weights = list(STEPS), list(STEPS.values())
        for self.number in range(1, steps + 1):
            name = self.dice.choices(names, weights)[0]
            for seldom, every in SELDOM.items():
                if self.number % every == 0:
                    name = seldom
            begun = time.monotonic()
            getattr(self, name)()
            self.longest_s[name] = max(self.longest_s[name], time.monotonic() - begun)
            self.compare()
            if self.number % REPORT_EVERY == 0:
                print(f"agree: {self.number} of {steps} steps", file=sys.stderr, flush=True)
        self.empty()
        return self.done

    # The steps. Each is tried in any state, and the model predicts whether it is refused.

    def any_partition(self) -> int:
        return self.dice.randrange(len(self.states))

    def plug(self, number: int | None = None) -> None:
        number = self.any_partition() if number is None else number
        self.expect({"verb": "plug", "partition": number}, self.states[number] == "absent", "plug")
        if self.states[number] == "absent":
            self.states[number] = "ready"

    def unplug(self, number: int | None = None) -> None:
        number = self.any_partition() if number is None else number
        self.expect({"verb": "unplug", "partition": number}, self.states[number] == "ready", "unplug")
        if self.states[number] == "ready":
            self.states[number] = "absent"

    def spawn(self) -> None:
        number = self.dice.choice([None, self.any_partition()])
        name = f"agree-{self.dice.randrange(len(self.states))}"
        free = [n for n, state in enumerate(self.states) if state == "ready" and number in (None, n)]
        allowed = bool(free) and name not in self.running
        spawn = {"instance": name, "partition": number, "argv": ["/opt/mayfly/keep", "give"]}
        spawned = self.expect({"verb": "spawn", "outside": False, "spawn": spawn}, allowed, "spawn")
        if not allowed:
            return
        if spawned["partition"] not in free:
            raise self.differs(f"an instance got partition {spawned['partition']}, and ready are {free}")
        self.states[spawned["partition"]] = "in_use"
        self.wait(lambda: "\n" in self.output(name), f"{name} gives")
        self.running[name] = (spawned["partition"], int(self.output(name).split()[1]))

    def stop(self, number: int | None = None) -> None:
        there = [name for name, (used, _) in self.running.items() if used == number]
        name = there[0] if there else f"agree-{self.dice.randrange(len(self.states))}"
        command = {"verb": "stop", "instance": name, "grace_ms": self.dice.choice([0, 100])}
        reason = self.expect(command, name in self.running, "stop")
        if name in self.running:
            if reason not in ({"kind": "signal", "signal": 9}, {"kind": "signal", "signal": 15}):
                raise self.differs(f"stopped, and it ended with {reason}")
            self.instance_ended(name)

    def exit(self) -> None:
        self.end("exit")

    def kill(self) -> None:
        self.end("kill")

    def overflow(self) -> None:
        self.end("overflow")

    def end(self, how: str) -> None:
        """An instance ends by itself."""
        if not self.running:
            return
        name = self.dice.choice(sorted(self.running))
        self.must({"verb": "input", "instance": name, "text": f"{how}\n", "close": False})
        reason = self.must({"verb": "wait", "instance": name, "timeout_ms": PATIENCE * 1000})
        if reason != ENDS[how]:
            raise self.differs(f"{name} got {how}, and ended with {reason}")
        self.done[how] += 1
        self.instance_ended(name)

    def instance_ended(self, name: str) -> None:
        number, _ = self.running.pop(name)
        self.states[number] = "held" if number in self.taken else "ready"

    def take(self) -> None:
        """A tool, as root, takes an instance's pipe."""
        able = sorted(name for name, (number, _) in self.running.items() if number not in self.taken)
        if not able:
            return
        name = self.dice.choice(able)
        number, descriptor = self.running[name]
        self.command_taker(f"take {number} {name} {descriptor}")
        self.taken.add(number)
        self.done["take"] += 1

    def drop(self) -> None:
        """The tool closes a pipe. The partition is ready a moment later, if no instance is in it."""
        if not self.taken:
            return
        number = self.dice.choice(sorted(self.taken))
        self.command_taker(f"drop {number}")
        self.taken.remove(number)
        self.done["drop"] += 1
        if self.states[number] == "held":
            self.states[number] = "ready"
            self.wait(lambda: self.actual_states()[number] == "ready", f"partition {number} is ready again")

    def command_taker(self, what: str) -> None:
        if self.taker is None:
            self.taker = f"taker-{self.done['takers']}"
            self.done["takers"] += 1
            spawn = {"instance": self.taker, "partition": None, "argv": ["/opt/mayfly/keep", "take"]}
            self.must({"verb": "spawn", "outside": True, "spawn": spawn})
            self.commands = 0
        self.must({"verb": "input", "instance": self.taker, "text": f"{what}\n", "close": False})
        self.commands += 1
        self.wait(lambda: len(self.output(self.taker).split()) == self.commands, f"{what}: done")
        if self.output(self.taker).split()[-1] != "done":
            raise self.differs(f"{what}: {self.output(self.taker)}")

    def agent(self) -> None:
        """Kills the guest's agent: all instances and tools end, and no memory is lost."""
        # After a delay, so that the host has the answer that the killer was started.
        script = f"sleep 3; {AGENT} kill -9 $pid; sleep 60"
        spawn = {"instance": "killer", "partition": None, "argv": ["/bin/sh", "-c", script]}
        self.must({"verb": "spawn", "outside": True, "spawn": spawn})
        reason = self.must({"verb": "wait", "instance": "killer", "timeout_ms": PATIENCE * 1000})
        if reason != {"kind": "agent_lost"}:
            raise self.differs(f"the agent was to be killed, and its killer ended with {reason}")
        self.wait(lambda: self.must({"verb": "status"})["guest"]["state"] == "up", "the guest is up")
        self.states = ["absent" if state == "absent" else "ready" for state in self.states]
        self.running, self.taken, self.taker = {}, set(), None
        # The new agent counts the pages of each partition, and some are just being freed: held, for a moment.
        time.sleep(2)
        self.wait(lambda: self.actual_states() == self.states, "all partitions are emptied")
        self.done["agent killed"] += 1

    def pause_qemu(self) -> None:
        """Stops QEMU for a while."""
        pid = self.must({"verb": "status"})["qemu_pid"]
        soon_s, pause_s = self.dice.uniform(*SOON_S), self.dice.uniform(*PAUSE_S)

        def pause():
            time.sleep(soon_s)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pause_s)
            os.kill(pid, signal.SIGCONT)

        pausing = threading.Thread(target=pause)
        pausing.start()
        self.operate_in_a_pause(soon_s + pause_s, pause_s)
        pausing.join()
        self.done["QEMU paused"] += 1

    def pause_agent(self) -> None:
        """Stops the guest's agent for a while."""
        soon_s, pause_s = self.dice.uniform(*SOON_S), self.dice.uniform(*PAUSE_S)
        script = f"sleep {soon_s:.3f}; {AGENT} kill -STOP $pid; sleep {pause_s:.3f}; kill -CONT $pid"
        spawn = {"instance": "pauser", "partition": None, "argv": ["/bin/sh", "-c", script]}
        self.must({"verb": "spawn", "outside": True, "spawn": spawn})
        self.operate_in_a_pause(soon_s + pause_s, pause_s)
        reason = self.must({"verb": "wait", "instance": "pauser", "timeout_ms": PATIENCE * 1000})
        if reason != {"kind": "code", "code": 0}:
            raise self.differs(f"the agent was to be paused, and its pauser ended with {reason}")
        self.done["agent paused"] += 1

    def operate_in_a_pause(self, ends_s: float, pause_s: float) -> None:
        """Does an operation in a pause that ends then: it ends as the model says, at most so much later."""
        number = self.any_partition()
        name = PAUSED[self.states[number]]
        begun = time.monotonic()
        getattr(self, name)(number)
        took_s = time.monotonic() - begun
        late_s = took_s - ends_s
        self.late_s = max(self.late_s, late_s)
        self.done["held up"] += took_s > pause_s
        if late_s > pause_s + self.longest_s[name] + SLACK_S:
            raise self.differs(
                f"{name} ended {late_s:.1f} s after a pause of {pause_s:.1f} s; without one it took "
                f"{self.longest_s[name]:.1f} s at most"
            )

    def restart(self) -> None:
        """Kills QEMU in the middle of an operation, and boots another VM."""
        if not self.boot:
            return
        pid = self.must({"verb": "status"})["qemu_pid"]
        verb = self.dice.choice(["plug", "unplug"])
        command = {"verb": verb, "partition": self.any_partition()}

        def operate():
            # The supervisor answers, or is gone.
            try:
                self.ask(command)
            except (OSError, AssertionError):
                return

        operating = threading.Thread(target=operate)
        operating.start()
        time.sleep(self.dice.uniform(*SOON_S))
        os.kill(pid, signal.SIGKILL)
        operating.join(PATIENCE)
        if operating.is_alive():
            raise self.differs(f"QEMU was killed, and {command} has no answer")
        self.boot()
        self.states = ["absent"] * len(self.states)
        self.running, self.taken, self.taker = {}, set(), None
        self.done["QEMU killed"] += 1

    # Comparisons.

    def output(self, name: str) -> str:
        bytes_of = self.must({"verb": "output", "instance": name, "from": 0})["bytes"]
        return base64.b64decode(bytes_of).decode(errors="replace")

    def actual_states(self) -> list[str]:
        return [partition["state"] for partition in self.must({"verb": "status"})["partitions"]]

    def compare(self) -> None:
        partitions = self.must({"verb": "status"})["partitions"]
        users = {number: name for name, (number, _) in self.running.items()}
        for number, (partition, state) in enumerate(zip(partitions, self.states, strict=True)):
            if (partition["state"], partition.get("instance")) != (state, users.get(number)):
                user = users.get(number, "")
                raise self.differs(f"partition {number} is {partition}, and not {state} {user}")
        guest = self.must({"verb": "memory"})["guest"]
        nodes = {node["partition"]: node for node in guest["nodes"] if node["partition"] is not None}
        for number, state in enumerate(self.states):
            total = nodes.get(number, {"total_bytes": 0})["total_bytes"]
            if total != (0 if state == "absent" else self.partition_bytes):
                raise self.differs(f"partition {number} is {state} and has {total} bytes in the guest")
            # The kernel's counts are some pages off: each CPU keeps a part of them.
            if state == "ready" and nodes[number]["anonymous_bytes"] >= MIB:
                raise self.differs(f"partition {number} is ready and not empty: {nodes[number]}")
        there = {info["instance"] for info in self.must({"verb": "instances"})} - {self.taker}
        if there != set(self.running):
            raise self.differs(f"instances {sorted(self.running)} run, and the guest has {sorted(there)}")

    def empty(self) -> None:
        for name in sorted(self.running):
            self.must({"verb": "stop", "instance": name, "grace_ms": 0})
            self.instance_ended(name)
        self.compare()
        while self.taken:
            self.drop()
        if self.taker:
            self.must({"verb": "stop", "instance": self.taker, "grace_ms": 0})
            self.taker = None
        for number, state in enumerate(self.states):
            if state == "ready":
                self.must({"verb": "unplug", "partition": number})
                self.states[number] = "absent"
        self.compare()
