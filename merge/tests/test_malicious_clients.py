"""Malicious clients (wire.py speaks for them): the store stays up, and no client learns of another domain's
pages or gets wrong bytes."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import socket

import pytest
from attack import PAGES, as_user, attacked, undisturbed
from store import NOBODY, Puppet, Store, check, until
from wire import (
    ATTACH,
    F_SEAL_FUTURE_WRITE,
    F_SEAL_GROW,
    F_SEAL_SEAL,
    F_SEAL_SHRINK,
    F_SEAL_WRITE,
    FINAL,
    HELLO,
    INDEX,
    INDEX_IS,
    NO_SEGMENT,
    OFFER,
    PAGE,
    PRIVATE,
    REFUSED,
    SPOKEN,
    STATUS,
    TAKEN,
    WELCOME,
    Wire,
    index_entries,
    memory,
    page,
    words,
)


def test_nonsense(built, options):
    """Bytes, lengths and files that are no request."""
    chance = random.Random(options.seed)

    def one(store):
        whole = [
            words(HELLO, SPOKEN),
            words(INDEX),
            words(OFFER, 1),
            words(ATTACH, 1),
            words(PRIVATE) + bytes(160),
            words(STATUS),
        ]
        for message in whole:
            for cut in [*range(0, min(len(message), 12)), *range(len(message) + 1, len(message) + 9)]:
                with Wire(store) as wire:
                    wire.ask((message + bytes(64))[:cut])
                    wire.ask(words(STATUS))
                with Wire(store, hello=False) as wire:
                    wire.ask((message + bytes(64))[:cut])
        for _ in range(200):
            with Wire(store, hello=chance.random() < 0.7) as wire:
                for _ in range(8):
                    kind, _ = wire.ask(
                        words(chance.randrange(10))
                        + chance.randbytes(chance.choice([0, 4, 8, 16, 200, 20000]))
                    )
                    if not kind:
                        break
        for numbers in [
            (HELLO, 0),
            (HELLO, 1),
            (HELLO, 0xFFFFFFFF),
            (OFFER, 0),
            (OFFER, 0xFFFFFFFF),
            (OFFER, 4097),
            (ATTACH, 0),
            (ATTACH, 0xFFFFFFFF),
            (0,),
            (9,),
            (0xFFFFFFFF,),
        ]:
            with Wire(store) as wire:
                kind, body = wire.ask(words(*numbers))
                check(kind in (0, REFUSED), f"{numbers} was answered with {kind}")
        with Wire(store) as wire, contextlib.suppress(OSError):
            wire.ask(words(PRIVATE) + bytes(16 * 4096))
        with Wire(store, hello=False) as wire:
            kind, _ = wire.ask(words(OFFER, 1))
            check(kind == 0, f"an offer before hello was answered with {kind}")
        with Wire(store, hello=False) as wire:
            kind, said = wire.offer(page(1, b"before hello") * 2)
            check(kind == 0, f"a file before hello was answered with {kind} {said}")

    with attacked(built) as (store, witness):
        as_user(NOBODY, lambda: one(store))
        undisturbed(store, witness)
        as_user(None, lambda: one(store))


def test_strange_files(built):
    """Files that are not sealed segments, too many of them, and segments that differ from their
    announcement."""
    data = b"".join(page(n) for n in range(4))

    def refused(store, what, file, count):
        try:
            with Wire(store) as wire:
                kind, body = wire.offer_file(file, count)
                check(kind in (0, REFUSED), f"{what} was taken: {kind} {body}")
        finally:
            os.close(file)

    def one(store):
        for count in (0, 1, 3, 5, 4096, 0x7FFFFFFF, 0xFFFFFFFF):
            refused(store, f"4 pages announced as {count}", memory(data), count)
        for seals in (
            0,
            F_SEAL_WRITE,
            F_SEAL_SHRINK | F_SEAL_GROW,
            F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
            F_SEAL_WRITE | F_SEAL_GROW,
            F_SEAL_WRITE | F_SEAL_SHRINK & 0,
        ):
            refused(store, f"a file with seals {seals}", memory(data, seals=seals), 4)
        refused(store, "half a page", memory(data[: PAGE // 2]), 1)
        hollow = os.memfd_create("hollow", os.MFD_ALLOW_SEALING)
        os.ftruncate(hollow, 16 * PAGE)
        fcntl.fcntl(hollow, fcntl.F_ADD_SEALS, FINAL)
        refused(store, "a file of holes", hollow, 16)
        giant = os.memfd_create("giant", os.MFD_ALLOW_SEALING)
        os.ftruncate(giant, 1 << 40)
        fcntl.fcntl(giant, fcntl.F_ADD_SEALS, FINAL)
        refused(store, "a terabyte", giant, 1 << 28)
        for path, flags in (
            ("/dev/zero", os.O_RDWR),
            ("/dev/null", os.O_RDWR),
            ("/", os.O_RDONLY),
            ("/proc/self/mem", os.O_RDONLY),
            ("/proc/self/maps", os.O_RDONLY),
            ("/etc/passwd", os.O_RDONLY),
            ("/tmp", os.O_PATH),
        ):
            with contextlib.suppress(PermissionError):
                refused(store, path, os.open(path, flags), 1)
        reader, writer = os.pipe()
        os.close(writer)
        refused(store, "a pipe", reader, 1)
        refused(store, "a socket", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), 1)
        refused(store, "an eventfd", os.eventfd(0), 1)
        # Files with messages that take none, and a bomb of files.
        with Wire(store) as wire:
            for number in (1, 3, 100, 253):
                files = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
                for message in (words(STATUS), words(OFFER, 1), words(INDEX)):
                    with contextlib.suppress(OSError):
                        kind, _ = wire.ask(message, *files)
                        if not kind:
                            wire.close()
                            wire = Wire(store)
                for file in files:
                    os.close(file)
        # A connection in a message on itself: only the kernel can collect it.
        for _ in range(50):
            wire = Wire(store)
            wire.send(words(OFFER, 1), wire.socket.fileno())
            wire.socket.close()
        # With the right seals, but no permission to open it again.
        with Wire(store) as wire:
            closed = memory(data)
            os.fchmod(closed, 0)
            kind, _ = wire.offer_file(closed, 4)
            check(kind in (0, REFUSED, TAKEN), f"{kind}")
            os.close(closed)

    with attacked(built) as (store, witness):
        as_user(NOBODY, lambda: one(store))
        undisturbed(store, witness)
        as_user(None, lambda: one(store))
    if os.geteuid() == 0:
        with Store(built, uid=NOBODY) as store:
            as_user(NOBODY, lambda: one(store))
            store.alive("as an ordinary user")


PROT = mmap.PROT_READ | mmap.PROT_WRITE


def attempts_to_write(file):
    """Every way to change a file that one may read; returns the names of those that worked."""
    worked = []

    def attempt(name, function):
        with contextlib.suppress(OSError, ValueError):
            function(), worked.append(name)

    path = f"/proc/self/fd/{file}"
    size = os.fstat(file).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    )
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    opened = [file]
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_APPEND):
        with contextlib.suppress(OSError):
            opened.append(os.open(path, flags))
    attempt(
        "open and truncate",
        lambda: os.close(os.open(path, os.O_RDWR | os.O_TRUNC)) or os.fstat(file).st_size == size or 1 / 0,
    )
    for one in opened:
        attempt("pwrite", lambda one=one: os.pwrite(one, b"evil", 0))
        attempt("ftruncate", lambda one=one: os.ftruncate(one, 0))
        attempt("grow", lambda one=one: os.ftruncate(one, size + PAGE))
        attempt("map shared", lambda one=one: mmap.mmap(one, PAGE, mmap.MAP_SHARED, PROT))
        attempt("punch a hole", lambda one=one: punch(libc, one))
        attempt("sendfile", lambda one=one: os.sendfile(one, os.open("/etc/passwd", os.O_RDONLY), 0, 100))

        def remap(one=one):
            at = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, one, 0)
            if at in (None, ctypes.c_void_p(-1).value):
                raise OSError(ctypes.get_errno(), "mmap")
            try:
                if libc.mprotect(at, PAGE, PROT):
                    raise OSError(ctypes.get_errno(), "mprotect")
                ctypes.memset(at, 0x66, 4)
            finally:
                libc.munmap(at, PAGE)

        attempt("mprotect", remap)
        with contextlib.suppress(OSError):
            fcntl.fcntl(one, fcntl.F_ADD_SEALS, F_SEAL_SEAL)
    for one in opened[1:]:
        os.close(one)
    return worked


def punch(libc, file):
    if libc.fallocate(file, 3, ctypes.c_long(0), ctypes.c_long(PAGE)):
        raise OSError(ctypes.get_errno(), "fallocate")


def test_writing(built):
    """A client tries to write to all that the store sends it, as any user of its domain."""

    def one(store, expected):
        with Wire(store) as wire:
            kind, numbers = wire.offer(b"".join(page(n, b"mine") for n in range(8)))
            check(kind == TAKEN, f"an offer was refused: {kind} {numbers}")
            kind, _ = wire.ask(words(INDEX))
            check(kind == INDEX_IS, f"no index: {kind}")
            segments = {segment for file in wire.files[:1] for _, segment, _ in index_entries(file)[0]}
            check(expected <= len(segments), f"the index names {len(segments)} segments")
            for segment in segments:
                wire.attach(segment)
            check(len(wire.files) >= 3, f"only {len(wire.files)} files came")
            for file in wire.files:
                name = os.readlink(f"/proc/self/fd/{file}")
                check(
                    not (worked := attempts_to_write(file)), f"{name} can be written to: {', '.join(worked)}"
                )
            # And to the files of the store's own process.
            for target in ("mem", "fd"):
                with contextlib.suppress(OSError):
                    if target == "fd":
                        for number in os.listdir(f"/proc/{store.pid}/fd"):
                            with contextlib.suppress(OSError):
                                link = os.readlink(f"/proc/{store.pid}/fd/{number}")
                                if "memfd" in link and os.geteuid():
                                    stolen = os.open(f"/proc/{store.pid}/fd/{number}", os.O_RDONLY)
                                    worked = attempts_to_write(stolen)
                                    check(
                                        not worked,
                                        f"{link} of the store can be written to: {', '.join(worked)}",
                                    )

    with attacked(built) as (store, witness):
        as_user(None, lambda: one(store, 1))
        witness.do("check 1", "advise 1 0", "check 1")
        as_user(NOBODY, lambda: one(store, 1))
        witness.do("check 1")
        with Puppet(store) as late:
            late.block(1, PAGES, 1)
            late.do("check 1")


def test_lock(built):
    """Another user cannot lock a socket's lock file, which would keep the next store away."""
    if os.geteuid() != 0:
        pytest.skip("needs root")

    def lock(path):
        with contextlib.suppress(PermissionError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "held"

    with Store(built) as store:
        store.stop()
        # As a store of an earlier version has left it.
        (store.folder / "share.lock").chmod(0o644)
        store.start()
        store.stop()
        check(not as_user(NOBODY, lambda: lock(store.folder / "share.lock")), "another user has the lock")
        elsewhere = store.folder / "apart"
        store.arguments = ("--lock", elsewhere)
        (store.folder / "share.lock").unlink()
        store.start()
        check(
            elsewhere.exists() and not (store.folder / "share.lock").exists(),
            "the lock is where it was asked for",
        )


def test_replays(built):
    """Segments that no longer exist, files kept from before, requests twice."""
    with attacked(built) as (store, witness):
        with Wire(store) as wire:
            kind, (new, segment, room) = wire.offer(b"".join(page(n, b"replay") for n in range(600)))
            check(kind == TAKEN and new == 600, f"offer: {kind} {new}")
            kind, (new, *_) = wire.offer(b"".join(page(n, b"replay") for n in range(600)))
            check(kind == TAKEN and new == 0, f"the same offer again has {new} new pages")
            for _ in range(3):
                kind, _ = wire.ask(words(HELLO, SPOKEN))
                check(kind in (0, WELCOME, REFUSED), f"hello again: {kind}")
        pages = store.metrics()["pages"]
        until(
            lambda: store.metrics()["pages"] < pages or store.metrics()["pages"] <= PAGES,
            "the segment is dropped with its only client",
        )
        with Wire(store) as wire:
            kind, body = wire.attach(segment)
            check(kind == REFUSED and body[:4] == words(NO_SEGMENT), f"a dropped segment: {kind} {body!r}")
            kind, (new, again, _) = wire.offer(b"".join(page(n, b"replay") for n in range(600)))
            check(kind == TAKEN and new == 600 and again != segment, "a segment's number is used twice")


def test_packed_segment(built):
    """Small offers are copied to a file of the store's: no other user opens it for writing, and seals that
    its own user adds do not stop the store."""

    def small(wire, word):
        kind, said = wire.offer(b"".join(page(n, word) for n in range(100)))
        check(kind == TAKEN and said[0] == 100, f"a small offer: {kind} {said}")
        return f"/proc/self/fd/{wire.files[-1]}"

    def attacker(store):
        with Wire(store) as wire, contextlib.suppress(PermissionError):
            os.close(os.open(small(wire, b"attacker"), os.O_RDWR))
            check(False, "another user's process opens a packed segment for writing")

    with attacked(built) as (store, witness):
        if os.geteuid() == 0:
            as_user(NOBODY, lambda: attacker(store))
        with Wire(store) as wire:
            path = small(wire, b"own")
            with contextlib.suppress(PermissionError):
                opened = os.open(path, os.O_RDWR)
                fcntl.fcntl(opened, fcntl.F_ADD_SEALS, F_SEAL_SEAL)
                worked = attempts_to_write(opened)
                check(not worked, f"it can be written to: {', '.join(worked)}")
                os.close(opened)
            for n in range(60):  # beyond the end of the segment
                small(wire, b"own %d" % n)
        undisturbed(store, witness)


def test_ended_in_the_middle(built):
    """Connections that end between a request and its answer, or carry half a conversation."""

    def one(store):
        for n in range(150):
            wire = Wire(store, hello=n % 3 > 0)
            with contextlib.suppress(OSError):
                file = memory(page(n, b"half"))
                wire.send(words(OFFER, 1), file)
                wire.send(words(ATTACH, 1))
                if n % 2:
                    wire.socket.shutdown(socket.SHUT_RD if n % 4 == 1 else socket.SHUT_WR)
                os.close(file)
            wire.close()

    with attacked(built) as (store, _):
        as_user(NOBODY, lambda: one(store))
        as_user(None, lambda: one(store))
