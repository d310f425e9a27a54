"""Random operations in many processes at once (workers.py), in memory of several kinds; in one form the store
is killed, too. At the end nothing may be left."""

import os
import pathlib
import subprocess
import time
from contextlib import contextmanager

import pytest
from store import BUILD, NOBODY, Failed, Store, check, until
from workers import Workers


@contextmanager
def transparent_huge_pages(mode):
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if os.geteuid() != 0 or not setting.exists():
        pytest.skip("needs root")
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


def test_eight_processes(built, options):
    print(clean(built, options))


def test_huge_pages_always(built, options):
    with transparent_huge_pages("always"):
        print(clean(built, options, share=0.3))


def test_huge_pages_never(built, options):
    with transparent_huge_pages("never"):
        print(clean(built, options, share=0.3))


def test_two_users(built, options):
    print(
        clean(
            built,
            options,
            share=0.3,
            uids=(None, NOBODY) if os.geteuid() == 0 else (None,),
            words=("stores",),
        )
    )


def test_store_killed(built, options):
    """kill -9 of the store, again and again, while all processes work; a new one takes its place."""
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
    print(f"{kills} times; {workers.summary(operations)}")


@contextmanager
def pressure(megabytes):
    """A memory control group with little memory, and a swap file to go with it."""
    group = pathlib.Path("/sys/fs/cgroup/memory/mayfly-merge-test")
    if os.geteuid() != 0 or not group.parent.is_dir():
        pytest.skip("needs root and the memory controller (cgroup v1)")
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
            pytest.skip("the swap file cannot be used")
        made = True
        yield group
    finally:
        if made:
            subprocess.run(["swapoff", swap], check=True)
        swap.unlink(missing_ok=True)
        until(lambda: (group / "cgroup.procs").read_text() == "", "the control group is empty")
        group.rmdir()


def test_memory_pressure(built, options):
    """Pages are swapped out, shared ones too, and in again."""
    if not options.soak:
        pytest.skip("a swap file for the whole machine: only with --soak")
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
        print(f"{pages} pages swapped; {workers.summary(operations)}")


def swapped():
    for line in pathlib.Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("pswpout "):
            return int(line.split()[1])
    raise Failed("no pswpout in /proc/vmstat")
