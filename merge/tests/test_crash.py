"""SIGKILL at every step: of a client, which must leave nothing in the store, and of the store, whose clients
must keep their pages and merge again with the next store. A step is the entry or exit of a system call
(programs/kill_at.c)."""

import contextlib
import fcntl
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import tempfile
import time

from store import Puppet, Store, check, until
from wire import Wire

PAGES = 96
# A client's commands between its first and last step: upload, find, change, keep private, unadvise, unmap.
SCENE = [
    "map 1 96",
    "fill 1 1",
    "map 2 96",
    "fill 2 2",
    "map 3 96",
    "fill 3 7",
    "steps begin",
    "advise 1 0",
    "advise 2 0",
    "touch 2 5 77",
    "advise_all 2 0",
    "begin 3 0",
    "unadvise 1",
    "unmap 3",
    "steps end",
    "check 1",
    "check 2",
]


def play(puppet, scene, may_fail=False):
    """Plays a scene; commands may fail for lack of a store, but contents must always be right."""
    failed = 0
    for command in scene:
        said = puppet.ask(command)
        if said != "ok":
            check(
                may_fail
                and re.match(r"(advise|begin)", command)
                and said.split()[0] in ("111", "104", "110", "32"),
                f"{command}: {said}",
            )
            failed += 1
    return failed


def test_segments_handed_in_again(store):
    """A client that meets a new store offers it its segments of the old one, not only the pages that it
    advises now."""
    with Puppet(store) as one:
        one.block(1, 600, 1)
        one.block(2, 600, 2)
        store.kill()
        store.start()
        one.do("advise 2 0", "check 1", "check 2")
        with Puppet(store) as late:
            late.block(1, 600, 1)
            stats = late.stats()
            check(stats["merged"] == 600 and not stats["inserted"], f"a newcomer after the restart: {stats}")


class Manager:
    """Keeps files for a service, as systemd does (FDSTORE=1), and passes them to the next process."""

    def __init__(self, folder):
        self.path, self.files = folder / "notify", []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)

    def listen(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                text, files, _, _ = socket.recv_fds(self.socket, 4096, 8)
                said = dict(line.split("=", 1) for line in text.decode().splitlines())
                name = said.get("FDNAME", "")
                if said.get("FDSTORE") == "1":
                    for file in files:
                        self.files.append((name, fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200)))
                        os.close(file)
                elif said.get("FDSTOREREMOVE") == "1":
                    for kept in [kept for kept in self.files if kept[0] == name]:
                        self.files.remove(kept)
                        os.close(kept[1])

    def start(self, store):
        names = ":".join(name for name, _ in self.files)
        numbers = " ".join(f"{3 + i}<&{file}" for i, (_, file) in enumerate(self.files))
        count = len(self.files)
        script = (
            f'exec {numbers}; export LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES="{names}"; exec "$@"'
        )
        store.start(prefix=["bash", "-c", script, "bash"], files=[file for _, file in self.files])

    def end(self):
        for _, file in self.files:
            os.close(file)
        self.socket.close()


def test_kept_by_a_service_manager(built):
    """With a service manager that keeps files, a killed store is restored with its identity and pages, before
    any client has sent a message. Foreign files among those kept do no harm."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-merge-manager-"))
    manager = Manager(folder)
    try:
        with Store(built, NOTIFY_SOCKET=str(manager.path)) as store, Puppet(store) as one:
            one.block(1, 600, 1)
            with Wire(store) as wire:
                identity = wire.identity
            manager.listen()
            check(len(manager.files) >= 2, f"it has left {[name for name, _ in manager.files]}")
            store.kill()
            false = os.open("/dev/null", os.O_RDONLY)
            for name in ("nonsense", "mayfly-segment-0123456789abcdef-7", "mayfly-store-0123456789abcdef"):
                manager.files.append((name, fcntl.fcntl(false, fcntl.F_DUPFD_CLOEXEC, 200)))
            os.close(false)
            manager.start(store)
            with Puppet(store) as late:
                late.block(1, 600, 1)
                stats = late.stats()
                check(
                    stats["merged"] == 600 and not stats["inserted"], f"a newcomer after the restart: {stats}"
                )
            with Wire(store) as wire:
                check(wire.identity == identity, "the store's identity changed with its restart")
            one.do("check 1", "advise 1 0", "check 1")
            check(one.stats()["unchanged"] == 600, f"to a client it is another store: {one.stats()}")
            one.end()
            manager.listen()
            store.empty("after all clients have ended")
            manager.listen()
            left = [name for name, _ in manager.files if f"{identity:016x}" in name and "segment" in name]
            check(not left, f"the manager still keeps {left}")
    finally:
        manager.end()
        shutil.rmtree(folder)


def steps_to_try(options, count):
    """All, or so many at random."""
    chance = random.Random(options.seed)
    steps = range(1, count + 1)
    return steps if options.soak else sorted(chance.sample(steps, min(count, 40)))


def test_client_killed_at_each_step(built, options):
    """A client is killed at each of its system calls; another client that shares with it is not disturbed."""
    stepper = built.program("kill_at")
    with Store(built) as store, Puppet(store) as witness:
        witness.block(1, PAGES, 2)
        with Puppet(store, prefix=[stepper, 10**9, "count"]) as whole:
            play(whole, SCENE)
            whole.send("exit")
            count = int(re.search(r"after (\d+) steps", whole.answer())[1])
        files = store.files()
        before = until(lambda: (m := store.metrics())["clients"] == 1 and m, "only the witness is left")
        for step in steps_to_try(options, count):
            with Puppet(store, prefix=[stepper, step, "count"]) as victim:
                for command in [*SCENE, "exit"]:
                    victim.send(command)
                said = ""
                while not said.startswith(("killed", "ended")):
                    said = victim.answer()
            store.alive(f"after a client was {said}")
            witness.do("check 1", "advise 1 0")
            until(lambda: store.metrics()["clients"] == 1, f"the store notices that a client was {said}")
            until(
                lambda: store.metrics()["pages"] <= before["pages"],
                f"the pages of a client go that was {said}",
            )
            until(lambda: store.files() <= files + 1, f"files of a client are closed that was {said}")
        with Puppet(store) as late:
            late.block(1, PAGES, 2)
            check(late.stats()["merged"] == PAGES, f"afterwards: {late.stats()}")
        witness.end()
        store.empty("after clients were killed at every step")
    print(f"{count} steps")


def test_store_replaced(store):
    """kill -9 of the store: clients keep their pages; with the next store they merge again, and it has their
    segments."""
    with Puppet(store) as one, Puppet(store) as two:
        one.block(1, PAGES, 1)
        two.block(1, PAGES, 1)
        identity = store.metrics().get("identity")
        for _ in range(3):
            store.kill()
            one.do("check 1", "touch 1 3 50", "check 1", "fill 1 1", "check 1", "unadvise 1", "check 1")
            said = one.ask("advise 1 0")
            check(said == "ok" or said.split()[0] in ("111", "104"), f"advise without a store: {said}")
            two.do("check 1")
            store.start()
            one.do("advise 1 0", "check 1")
            two.do("advise 1 0", "check 1")
            with Puppet(store) as three:
                three.block(1, PAGES, 1)
                check(three.stats()["merged"] == PAGES, f"a newcomer after the restart: {three.stats()}")
            check(
                two.private_kib(1) <= 16,
                f"after the restart the second keeps {two.private_kib(1)} KiB to itself",
            )
        check(store.metrics().get("identity") == identity, "the store's identity changed with its restart")
        one.end()
        two.end()
        store.empty("after restarts")


def test_store_killed_at_each_step(built, options):
    """The store is killed at each of its system calls while a client works."""
    stepper = built.program("kill_at")
    with Store(built) as store, Puppet(store) as witness:
        witness.block(1, PAGES, 2)
        store.stop()
        # The number of steps of a whole life; the last ones are its end.
        store.start(prefix=[stepper, 10**9, "all"])
        with Puppet(store) as puppet:
            play(puppet, SCENE, may_fail=True)
        end_stepped(store)
        count = int(re.findall(r"after (\d+) steps", store.log_text())[-1])
        for step in steps_to_try(options, count):
            store.start(prefix=[stepper, step, "all"], wait=False)
            time.sleep(0.02)
            with Puppet(store) as puppet:
                play(puppet, SCENE, may_fail=True)
                end_stepped(store)
                witness.do("check 1")
                store.start()
                puppet.do("advise 1 0", "advise 2 0", "check 1", "check 2")
                witness.do("advise 1 0", "check 1")
                with Puppet(store) as late:
                    late.block(1, PAGES, 1)
                    merged = late.stats()["merged"]
                    check(
                        merged == PAGES,
                        f"killed at step {step}, a newcomer then merged {merged} of {PAGES} pages",
                    )
            witness.do("check 1")
            store.stop()
        store.start()
        witness.end()
        store.empty("after the store was killed at every step")
    print(f"{count} steps")


def end_stepped(store):
    """Ends a store that runs under kill_at, if it lives."""
    with (
        open(f"/proc/{store.pid}/task/{store.pid}/children") as file,
        contextlib.suppress(ProcessLookupError),
    ):
        for child in file.read().split():
            os.kill(int(child), signal.SIGTERM)
    store.process.wait(60)


def test_clients_stopped(store):
    """A client that is stopped at arbitrary points does not delay the others."""
    with Puppet(store) as one:
        one.block(1, PAGES, 1)
        stopped = [Puppet(store) for _ in range(8)]
        try:
            for n, puppet in enumerate(stopped):
                puppet.do("map 1 2048", f"fill 1 {10 + n}")
                puppet.send("advise 1 0")
                time.sleep(0.001 * n)
                puppet.process.send_signal(signal.SIGSTOP)
            start = time.monotonic()
            with Puppet(store) as two:
                two.block(1, PAGES, 1)
                check(two.stats()["merged"] == PAGES, f"{two.stats()}")
            took = time.monotonic() - start
            check(took < 10, f"beside stopped clients it took {took:.1f} s")
            for puppet in stopped:
                puppet.process.send_signal(signal.SIGCONT)
            for puppet in stopped:
                check((said := puppet.answer()) == "ok", f"a client that had been stopped: {said}")
                puppet.do("check 1")
        finally:
            for puppet in stopped:
                puppet.process.send_signal(signal.SIGCONT)
                puppet.end()
        one.end()
        store.empty("after stopped clients")
