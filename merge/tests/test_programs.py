"""The list of programs, the charge for the store's pages, and programs of another release than the
store's."""

import contextlib
import errno
import json
import os
import pathlib
import re
import socket
import subprocess
import threading

import pytest
from store import Puppet, Store, check, until
from wire import HELLO, OFFER, REFUSED, SPOKEN, VERSION, WELCOME, Wire, memory, page, words

PAGES = 8192


def top(store, option):
    """The output of `mayfly share top`."""
    command = [store.built.mayfly, "share", "top", option]
    environment = store.built.environment(store.socket)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    check(done.returncode == 0, f"share top: {done.stderr}")
    return done.stdout


def listed(store):
    """The same of each program, by its process."""
    programs = {}
    for key, value in json.loads(top(store, "--json")).items():
        if found := re.match(r"share\..*\.program\.(\d+)\.(\w+)$", key):
            programs.setdefault(found[1], {})[found[2]] = value
    return {program["pid"]: program for program in programs.values()}


def test_top(store, built):
    """The first is charged, the second has found everything; a program that has ended stays while it is
    charged."""
    with Puppet(store) as one, Puppet(store) as two, Puppet(store) as idle:
        idle.do("map 1 8", "fill 1 1")
        one.block(1, PAGES, 1)
        two.block(1, PAGES, 1)
        programs = listed(store)
        check(set(programs) == {one.pid, two.pid}, f"in the list: {programs}")
        first, second = programs[one.pid], programs[two.pid]
        check(first["charged_pages"] == PAGES and first["found_pages"] == 0, f"the first: {first}")
        check(second["charged_pages"] == 0 and second["found_pages"] == PAGES, f"the second: {second}")
        for puppet, entry in ((one, first), (two, second)):
            check(
                entry["looked_up_pages"] == PAGES and entry["name"] == "puppet",
                f"listed: {entry}",
            )
            start, size = map(int, puppet.ask("where 1").split())
            maps = pathlib.Path(f"/proc/{puppet.pid}/maps").read_text()
            lines = [line for line in maps.splitlines() if "mayfly-pages" in line]
            check(1 <= entry["mappings"] <= 2 * len(lines), f"{entry} with {len(lines)} mappings")
        check(0 <= second["age_seconds"] <= first["age_seconds"] < 600, f"{first} {second}")
        two.do("advise 1 0")
        check(listed(store)[two.pid]["looked_up_pages"] == PAGES, "what was unchanged was not looked for")
        two.do("unadvise 1")
        check(listed(store)[two.pid]["mappings"] == 0, "after unadvise it has no mappings")
        two.do("advise 1 0")
        one.kill()
        ended = until(lambda: (p := listed(store)[one.pid])["has_gone"] and p, "the first has ended")
        check(ended["charged_pages"] == PAGES and ended["mappings"] == 0, f"ended, still charged: {ended}")
        table = top(store, "--once")
        check(re.search(r"puppet +ended .* 32\.0 ", table), f"no line for it:\n{table}")
        two.do("check 1", "unmap 1", "map 2 16", "fill 2 90", "unadvise 2")
        until(lambda: one.pid not in listed(store), "no program uses its segments")


def test_many_programs(store, built):
    """More than a message holds."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(store)) for _ in range(300)]
        for n, wire in enumerate(wires):
            wire.ask(words(8, n + 1, 0, n, 0, 0, 0))
        pages = [v for k, v in json.loads(top(store, "--json")).items() if k.endswith(".looked_up_pages")]
        check(sorted(pages) == list(range(1, 301)), f"{len(pages)} programs in the list")


def memory_groups():
    folder = pathlib.Path("/sys/fs/cgroup/memory")
    if not folder.is_dir():
        folder = folder.parent
    if os.geteuid() != 0 or not os.access(folder / "cgroup.procs", os.W_OK):
        pytest.skip("needs root and cgroups")
    if not (folder / "memory.stat").exists():
        pytest.skip("the memory controller is not there")
    return folder


def shared_mib(group):
    return int(re.search(r"^shmem (\d+)$", (group / "memory.stat").read_text(), re.M)[1]) / (1 << 20)


def test_charge(built):
    """Which cgroup is charged for 32 MiB in large offers and 1 MiB in small ones."""
    folder = memory_groups()
    groups = [folder / f"mayfly-charge-{os.getpid()}-{name}" for name in ("store", "first", "second")]
    said = []
    try:
        for group in groups:
            group.mkdir()
        if not (groups[0] / "memory.stat").exists():
            pytest.skip("the memory controller is not given to new cgroups")
        for how in ("first", "store"):
            with Store(built, "--charge", how) as store, Puppet(store) as one, Puppet(store) as two:
                members = [store.pid, one.pid, two.pid]
                for group, pid in zip(groups, members, strict=True):
                    (group / "cgroup.procs").write_text(str(pid))
                before = [shared_mib(group) for group in groups]
                for puppet in (one, two):
                    puppet.block(1, PAGES, 1)
                    puppet.block(2, 256, 20)
                check(two.stats()["merged"] == PAGES + 256, f"--charge {how}: {two.stats()}")
                # Memory for the rest of the store's open packed segment is not allocated before pages are
                # written.
                paid = [shared_mib(g) - b for g, b in zip(groups, before, strict=True)]
                small = 1.0
                want = [small, 32.0, 0.0] if how == "first" else [32 + small, 0.0, 0.0]
                for name, mib, wanted in zip(("store", "first", "second"), paid, want, strict=True):
                    check(abs(mib - wanted) < 1.5, f"--charge {how}: the {name}'s cgroup has {paid} MiB")
                mine = PAGES if how == "first" else 0
                until(
                    lambda mine=mine: store.metrics()["copied_pages"] == PAGES + 256 - mine,
                    f"--charge {how}: what the store has copied is posted",
                )
                charged = listed(store)[one.pid]["charged_pages"]
                check(charged == mine, f"--charge {how}: {charged}")
                one.do("check 1", "check 2")
                one.kill()
                two.do("touch 1 5 9", "check 1", "check 2")
                two.end()
                store.empty("after both have ended")
                said.append(f"{how}: {paid[0]:.0f} and {paid[1]:.0f} MiB")
    finally:
        for group in groups:
            if group.exists():
                until(lambda group=group: (group / "cgroup.procs").read_text() == "", "a cgroup is empty")
                group.rmdir()
    print("; ".join(said))


def test_a_store_that_pays_is_bounded(built):
    """With --charge store it holds at most three quarters of its own cgroup's limit, whatever --limit is."""
    folder = memory_groups()
    limit = next((n for n in ("memory.limit_in_bytes", "memory.max") if (folder / n).exists()), None)
    group = folder / f"mayfly-charge-{os.getpid()}-small"
    try:
        group.mkdir()
        limit = next((n for n in ("memory.limit_in_bytes", "memory.max") if (group / n).exists()), None)
        if limit is None:
            pytest.skip("the memory controller is not given to new cgroups")
        (group / limit).write_text(str(64 << 20))
        inside = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        with Store(built, "--charge", "store", prefix=inside) as store, Puppet(store) as one:
            said = []
            for block in range(6):
                one.do(f"map {block} 4096", f"fill {block} {10 * block + 1}")
                said.append(one.ask(f"advise {block} 0"))
                one.do(f"check {block}")
            check(said[0] == "ok" and said[-1].startswith(str(errno.ENOSPC)), f"it said {said}")
            held = store.metrics()["store_pages"] / 256
            check(held <= 48, f"it holds {held} MiB, and its cgroup has 64")
            print(f"{held:.0f} of 64 MiB")
    finally:
        if group.exists():
            until(lambda: (group / "cgroup.procs").read_text() == "", "the cgroup is empty")
            group.rmdir()


class OtherStore(threading.Thread):
    """A store that answers hello as one of another release does, and nothing else."""

    def __init__(self, path, line):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.line = line

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    if connection.recv(64) == words(HELLO, SPOKEN):
                        connection.send(words(REFUSED, VERSION) + self.line.encode())


def test_other_releases(store):
    """One line on either side, and both continue: nothing is shared, and nothing else happens."""
    for version in (0, SPOKEN - 1, SPOKEN + 1, 0xFFFFFFFF):
        with Wire(store, hello=False) as old:
            kind, body = old.ask(words(HELLO, version))
            check((kind, body[:4]) == (REFUSED, words(VERSION)), f"version {version}: {kind} {body!r}")
            line = body[4:].decode()
            check("use one release of both" in line and "\n" not in line, f"the line is {line!r}")
            file = memory(page(1))
            kind, _ = old.ask(words(OFFER, 1), file)
            os.close(file)
            check(kind == 0, f"version {version} was served all the same: {kind}")
    with Wire(store, hello=False) as again:
        kind, _ = again.ask(words(HELLO, SPOKEN))
        check(kind == WELCOME, f"this version is not welcome: {kind}")
    store.alive("after clients of other releases")
    path = store.folder / "other.socket"
    line = "the page store speaks version 2 and the program 3: use one release of both"
    OtherStore(path, line).start()
    with Puppet(store, socket=path) as new:
        new.do(f"map 1 {PAGES}", "fill 1 1")
        for _ in range(2):
            said = new.ask("advise 1 0")
            check(said == f"{errno.EPROTO} {line}", f"with a store of another release: {said}")
            new.do("check 1")
