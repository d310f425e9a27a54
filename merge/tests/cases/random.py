"""Random operations in many processes at once (programs/random_worker.c), every byte checked against a
model; processes are killed and replaced on the way, in one form the store itself, too. At the end nothing
may be left."""

import mmap
import os
import pathlib
import random
import signal
import struct
import subprocess
import time
from contextlib import contextmanager, suppress

from store import BUILD, NOBODY, Failed, Skip, Store, as_user, check, status_text, until


class Workers:
    """So many random workers at a time, until they have done so many operations together."""

    def __init__(self, built, store, options, processes, operations, words=(), uids=(None,), name="run"):
        self.built, self.store, self.words, self.uids = built, store, words, uids
        self.chance = random.Random(options.seed)
        self.processes, self.operations = processes, operations
        self.progress = BUILD / f"progress-{os.getpid()}-{name}"
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
            out, err = worker.communicate(timeout=60)
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
                    # One that gets on: one that hangs must be found out, not put out of its misery.
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


@contextmanager
def transparent_huge_pages(mode):
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if os.geteuid() != 0 or not setting.exists():
        raise Skip("needs root")
    before = setting.read_text().split("[")[1].split("]")[0]
    setting.write_text(mode)
    try:
        yield
    finally:
        setting.write_text(before)


def clean(built, options, words=(), processes=8, share=1.0, uids=(None,)):
    """One run that must leave nothing in the store."""
    with Store(built) as store:
        files, resident = store.files(), store.resident_kib()
        workers = Workers(built, store, options, processes, int(options.operations * share), words, uids)
        operations = workers.go()
        store.alive("during the random test")
        store.empty("after the random test")
        until(
            lambda: store.files() <= files + 1,
            f"the store's files are closed again: {files}, now {store.files()}",
        )
        check(
            store.resident_kib() < resident + 65536,
            f"the store grew from {resident} to {store.resident_kib()} KiB",
        )
    return workers.summary(operations)


def plain(built, options):
    return clean(built, options)


def huge_pages_always(built, options):
    with transparent_huge_pages("always"):
        return clean(built, options, share=0.3)


def huge_pages_never(built, options):
    with transparent_huge_pages("never"):
        return clean(built, options, share=0.3)


def two_users(built, options):
    return clean(
        built, options, share=0.3, uids=(None, NOBODY) if os.geteuid() == 0 else (None,), words=("stores",)
    )


def store_killed(built, options):
    """kill -9 of the store, again and again, while everybody works; a new one takes its place."""
    with Store(built) as store:
        kills = 0

        def disturb(workers):
            nonlocal kills
            if not kills or workers.chance.random() < 0.4:
                store.kill()
                time.sleep(workers.chance.random() * 0.2)
                store.start()
                kills += 1

        workers = Workers(built, store, options, 8, int(options.operations * 0.4), ("outages",))
        operations = workers.go(disturb=disturb)
        store.empty("after the random test")
    check(kills, "the store was never killed")
    return f"{kills} times; {workers.summary(operations)}"


@contextmanager
def pressure(megabytes):
    """A memory control group with little memory, and a swap file to go with it."""
    group = pathlib.Path("/sys/fs/cgroup/memory/mayfly-merge-test")
    if os.geteuid() != 0 or not group.parent.is_dir():
        raise Skip("needs root and the memory controller (cgroup v1)")
    swap = BUILD / "swap"
    swap.unlink(missing_ok=True)
    group.mkdir(exist_ok=True)
    made = False
    try:
        (group / "memory.limit_in_bytes").write_text(str(megabytes << 20))
        subprocess.run(["fallocate", "-l", "512M", swap], check=True)
        swap.chmod(0o600)
        subprocess.run(["mkswap", swap], check=True, capture_output=True)
        if subprocess.run(["swapon", swap], capture_output=True).returncode != 0:
            raise Skip("the swap file cannot be used")
        made = True
        yield group
    finally:
        if made:
            subprocess.run(["swapoff", swap], check=True)
        swap.unlink(missing_ok=True)
        until(lambda: (group / "cgroup.procs").read_text() == "", "the control group is empty")
        group.rmdir()


def memory_pressure(built, options):
    """Pages are swapped out, shared ones too, and come back."""
    if not options.soak:
        raise Skip("a swap file for the whole machine: only with --soak")
    with pressure(100) as group, Store(built) as store:
        before = swapped()
        (group / "cgroup.procs").write_text(str(store.pid))

        def join(workers):
            for worker in workers.running.values():
                if worker.poll() is None:
                    (group / "cgroup.procs").write_text(str(worker.pid))

        workers = Workers(
            built, store, options, 8, int(options.operations * 0.1), ("pressure", "outages", "full")
        )
        operations = workers.go(disturb=join)
        pages = swapped() - before
        check(pages > 1000, f"only {pages} pages were swapped out: no pressure")
        store.alive("under memory pressure")
        store.empty("after the random test")
        return f"{pages} pages swapped; {workers.summary(operations)}"


def swapped():
    for line in pathlib.Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("pswpout "):
            return int(line.split()[1])
    raise Failed("no pswpout in /proc/vmstat")


TESTS = {
    "eight processes": plain,
    "huge pages always": huge_pages_always,
    "huge pages never": huge_pages_never,
    "two users": two_users,
    "store killed": store_killed,
    "memory pressure": memory_pressure,
}
