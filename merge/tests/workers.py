"""Random operations in many processes at once (programs/random_worker.c), every byte checked against a model;
processes are killed and replaced on the way."""

import mmap
import os
import random
import signal
import struct
import subprocess
import time
from contextlib import suppress

from store import Failed, as_user, check, status_text


class Workers:
    """So many random workers at a time, until they have done so many operations together."""

    def __init__(self, built, store, options, processes, operations, words=(), uids=(None,), name="run"):
        self.built, self.store, self.words, self.uids = built, store, words, uids
        self.chance = random.Random(options.seed)
        self.processes, self.operations = processes, operations
        self.progress = built.build / f"progress-{os.getpid()}-{name}"
        self.running, self.killed, self.sums, self.started = {}, 0, {}, 0

    def start(self, slot):
        seed = self.chance.randrange(1 << 40)
        each = min(600, max(100, self.operations // self.processes // 4))
        uid = self.uids[self.started % len(self.uids)]
        self.started += 1
        command = [
            self.built.program("random_worker"),
            str(seed),
            str(each),
            f"progress={self.progress}:{slot}",
            *self.words,
        ]
        self.running[slot] = subprocess.Popen(
            command,
            env=self.built.environment(self.store.socket),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **as_user(uid),
        )

    def reap(self, slot, replace):
        worker = self.running[slot]
        try:
            out, err = worker.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(map(str, worker.args[1:]))}: hangs") from None
        # Children that it forked and left.
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        # Under memory pressure the kernel, too, kills.
        if worker.returncode == -signal.SIGKILL and (worker in self.victims or "pressure" in self.words):
            self.killed += 1
        else:
            check(
                worker.returncode == 0,
                f"{' '.join(map(str, worker.args[1:]))}: {status_text(worker.returncode)}\n{err[-3000:]}",
            )
            for pair in out.split():
                key, value = pair.split("=")
                self.sums[key] = self.sums.get(key, 0) + int(value)
        del self.running[slot]
        if replace:
            self.start(slot)

    def done(self):
        return sum(struct.unpack(f"{self.processes}Q", self.shared[: 8 * self.processes]))

    def go(self, every=0.3, disturb=None, limit=1800, seconds=None):
        """Until so many operations are done, or for so many seconds."""
        self.victims = set()
        self.progress.write_bytes(bytes(mmap.PAGESIZE))
        self.progress.chmod(0o666)
        end = time.monotonic() + (seconds or limit)
        try:
            with open(self.progress, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as self.shared:
                for slot in range(self.processes):
                    self.start(slot)
                now = (0,) * self.processes
                while time.monotonic() < end if seconds else self.done() < self.operations:
                    check(
                        seconds or time.monotonic() < end,
                        f"only {self.done()} of {self.operations} operations in {limit} s",
                    )
                    time.sleep(every)
                    for slot, worker in list(self.running.items()):
                        if worker.poll() is not None:
                            self.reap(slot, True)
                    # Kills one that makes progress: a hanging one must be found out, not removed.
                    before, now = now, struct.unpack(f"{self.processes}Q", self.shared[: 8 * self.processes])
                    slot = self.chance.randrange(self.processes)
                    victim = self.running[slot]
                    is_moving = now[slot] != before[slot] and victim.poll() is None
                    if self.chance.random() < 0.25 and is_moving:
                        self.victims.add(victim)
                        os.killpg(victim.pid, signal.SIGKILL)
                    if disturb:
                        disturb(self)
                operations = self.done()
                for slot in list(self.running):
                    self.reap(slot, False)
        finally:
            for worker in self.running.values():
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
                worker.communicate()
            self.progress.unlink()
        check(
            self.sums.get("merged", 0) + self.sums.get("unchanged", 0) > 0, f"nothing was merged: {self.sums}"
        )
        return operations

    def summary(self, operations):
        shown = " ".join(
            f"{self.sums.get(k, 0)} {k}"
            for k in ("counts", "merged", "inserted", "unchanged", "busy", "failed")
        )
        return f"{operations} operations, {self.started} processes, {self.killed} killed; {shown}"
