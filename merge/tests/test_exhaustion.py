"""Clients that flood, hoard, keep files and block: the store's memory and files stay bounded, and no other
client waits."""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import socket
import struct
import time

import pytest
from attack import PAGES, as_user, attacked, undisturbed
from store import NOBODY, Failed, Puppet, check, until
from wire import INDEX, NOTED, OFFER, PRIVATE, REFUSED, STATUS, TAKEN, Wire, memory, page, words

QUOTA = ("--limit", "16MiB")


def test_flood_of_connections(built):
    """One user opens all the connections of a store that may open few files."""
    if os.geteuid() != 0 or not shutil.which("prlimit"):
        pytest.skip("needs root, to be two users, and prlimit")
    files = 400

    def flood(store):
        wires = []
        for n in range(1500):
            with contextlib.suppress(OSError):
                wires.append(Wire(store, hello=n % 2 == 0, timeout=0.5))
        return wires

    with attacked(built, prefix=("prlimit", f"--nofile={files}:{files}"), files=files) as (store, witness):
        ready, tell = os.pipe()
        stop, stopped = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(stopped)
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            kept = flood(store)
            os.write(tell, struct.pack("i", len(kept)))
            os.read(stop, 1)
            os._exit(0)
        try:
            count = struct.unpack("i", os.read(ready, 4))[0]
            undisturbed(store, witness)
            with Puppet(store) as late:
                late.block(1, PAGES, 1)
                check(late.stats()["merged"] == PAGES, f"a newcomer during the flood: {late.stats()}")
            opened = store.files()
        finally:
            for pipe in (stopped, stop, ready, tell):
                os.close(pipe)
            os.waitpid(child, 0)
        print(f"{count} connections, the store had {opened} of {files} files open")


def test_flood_of_requests(built):
    """Requests without end whose answers the client does not read, and large offers back to back."""

    def flood(store):
        with Wire(store) as deaf, Wire(store) as busy:
            deaf.socket.setblocking(False)
            sent = 0
            for message in (
                words(INDEX),
                words(STATUS),
                words(PRIVATE) + os.urandom(16 * 1024),
                words(INDEX),
            ):
                for _ in range(20000):
                    try:
                        deaf.send(message)
                        sent += 1
                    except OSError:
                        break
            large = b"".join(page(n, b"flood") for n in range(2048)) * 2
            file = memory(large)
            end = time.monotonic() + 2
            while time.monotonic() < end:
                busy.offer_file(file, 4096)
                busy.drop()
            os.close(file)
            return sent

    with attacked(built, grown_kib=65536) as (store, witness):
        children = [beside(NOBODY, lambda: flood(store)) for _ in range(3)]
        slowest = 0.0
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            start = time.monotonic()
            undisturbed(store, witness)
            slowest = max(slowest, time.monotonic() - start)
        for child in children:
            os.waitpid(child, 0)
        print(f"the slowest innocent call took {slowest * 1000:.0f} ms")


def test_hoard(built):
    """A client uploads pages until the store is full, and keeps everything."""
    with attacked(built, *QUOTA, grown_kib=32768, files=600) as (store, witness):

        def fill():
            with Wire(store) as wire:
                given = 0
                for n in range(2000):
                    size = 512 if n % 2 else 3
                    kind, body = wire.offer(b"".join(page(n * 512 + i, b"hoard") for i in range(size)))
                    if kind != TAKEN:
                        check(
                            kind == REFUSED and body[:4] == words(1),
                            f"refused for another reason: {kind} {body!r}",
                        )
                        break
                    given += size
                check(given * 4 <= 20 * 1024, f"the store took {given * 4} KiB, above its quota")
                check(given * 4 >= 8 * 1024, f"the store took only {given * 4} KiB")
                for _ in range(300):
                    wire.ask(words(PRIVATE) + os.urandom(16 * 1024))
                return given

        as_user(NOBODY, fill)
        undisturbed(store, witness)


def test_old_indexes(built):
    """A client keeps every index of the store and makes it replace the index again and again."""

    def churn(store):
        kept = []
        with Wire(store, timeout=20) as holder:
            for _ in range(120):
                for _ in range(2):
                    with Wire(store) as wire:
                        for _ in range(16):
                            kind, _ = wire.ask(words(PRIVATE) + os.urandom(16 * 1024))
                            check(kind in (NOTED, REFUSED), f"{kind}")
                holder.ask(words(INDEX))
            kept = {os.fstat(file).st_ino: os.fstat(file).st_blocks * 512 for file in holder.files}
            return sum(kept.values()) >> 10, len(kept)

    with attacked(built, grown_kib=32768) as (store, _):
        kib, number = as_user(NOBODY, lambda: churn(store))
        check(kib < 8192, f"a client makes the store keep {number} indexes of {kib} KiB together")
        print(f"{number} indexes, {kib} KiB")


def leased(pages):
    """A segment that is open once, with a lease on it: opening it waits for this process."""
    written = memory(b"".join(page(n, b"lease") for n in range(pages)))
    file = os.open(f"/proc/self/fd/{written}", os.O_RDONLY)
    os.close(written)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return file


def test_leases(built):
    """A lease on an offered file would make the store wait when it opens the file again (45 s)."""

    def one(store):
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        for size in (1, 600):
            with Wire(store, timeout=3) as wire:
                file = leased(size)
                with contextlib.suppress(TimeoutError):
                    wire.offer_file(file, size)
                os.close(file)

    # Here rather than in the attacker: a test without a lease would prove nothing.
    os.close(leased(1))
    # As another user, and as a process of the innocent client's own user.
    for user in (NOBODY, None):
        with attacked(built) as (store, witness):
            blocked_by(store, witness, lambda store=store: one(store), user)


def beside(user, attack):
    """In a process of its own, which may end in any way."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            as_user(user, attack)
        os._exit(0)
    return child


def blocked_by(store, witness, attack, user, looks=10):
    child = beside(user, attack)
    try:
        for _ in range(looks):
            undisturbed(store, witness)
            time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lingering_sockets(built):
    """Closing a TCP socket whose data is not read can take as long as its owner likes; the store's close is
    the last."""

    def one(store):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for message in (words(OFFER, 1), words(STATUS)):
            with Wire(store, timeout=1) as wire:
                heavy = socket.create_connection(listener.getsockname())
                peer, _ = listener.accept()
                heavy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
                heavy.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        heavy.send(bytes(65536))
                wire.send(message, heavy.fileno())
                os.close(heavy.detach())
                with contextlib.suppress(OSError):
                    wire.receive()
                time.sleep(0.2)
                peer.detach()
        time.sleep(3)

    with attacked(built) as (store, witness):
        blocked_by(store, witness, lambda: one(store), NOBODY, 25)


def test_metrics_connections(built):
    """/metrics with connections that send nothing, nonsense or too much."""
    with attacked(built) as (store, witness):
        idle = []
        for n in range(60):
            visitor = socket.socket(socket.AF_UNIX)
            visitor.settimeout(5)
            visitor.connect(str(store.figures))
            idle.append(visitor)
            with contextlib.suppress(OSError):
                visitor.sendall(
                    [
                        b"",
                        b"GET /met",
                        b"\xff" * 5000,
                        b"POST /metrics HTTP/1.1\r\n\r\n",
                        b"GET /" + b"x" * 3000,
                    ][n % 5]
                )
        undisturbed(store, witness)

        def answers():
            with contextlib.suppress(OSError, Failed):
                return store.metrics()

        until(answers, "/metrics answers again", 8)
        for visitor in idle:
            visitor.close()


def test_stuck_store(store, options):
    """A store that does nothing, with a full queue of connections, costs a client its timeout and no more."""
    if not options.soak:
        pytest.skip("takes as long as a client is patient, 20 s: only with --soak")
    with Puppet(store) as one:
        one.do("map 1 64", "fill 1 1")
        store.process.send_signal(signal.SIGSTOP)
        queue = []
        try:
            for _ in range(2000):
                waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                waiting.setblocking(False)
                queue.append(waiting)
                if waiting.connect_ex(str(store.socket)):
                    break
            said = one.ask("advise 1 0", 50)
            check(said.split()[0] in ("110", "11"), f"a stuck store: {said}")
            one.do("check 1")
        finally:
            store.process.send_signal(signal.SIGCONT)
            for waiting in queue:
                waiting.close()
        one.do("advise 1 0", "check 1")
        print(f"behind {len(queue)} others: {said}")


def test_small_offers(built):
    """The store pays for the pages that it copies: few, however many a client offers. It refuses nothing for
    that."""
    with attacked(built, "--limit", "1GiB", grown_kib=64 << 10) as (store, witness):
        begun = store.metrics()["copied_pages"]

        def hand_in(wire, word, offers):
            for n in range(offers):
                kind, said = wire.offer(b"".join(page(n * 400 + i, word) for i in range(400)))
                check(kind == TAKEN and said[0] == 400, f"offer {n}: {kind} {said}")

        with Wire(store) as one, Wire(store) as other:
            # Metrics are posted after the answer.
            hand_in(one, b"one", 20)
            until(lambda: store.metrics()["pages"] >= 20 * 400, "the store holds what one has handed in")
            copied = store.metrics()["copied_pages"] - begun
            check(0 < copied <= 2048, f"for one client the store has copied {copied} pages")
            hand_in(other, b"other", 2)
            until(
                lambda: store.metrics()["pages"] >= 22 * 400, "the store holds what the other has handed in"
            )
            check(store.metrics()["copied_pages"] > begun + copied, "another client's are not copied")
        until(lambda: store.metrics()["pages"] <= begun + 4096, "what was kept is freed with its clients")
        undisturbed(store, witness)
        print(f"{copied} of 8000 pages copied")
