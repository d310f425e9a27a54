"""Fuzzing of both ends: whole sessions with the store in which messages are cut, joined, repeated and
altered, and files exchanged; and answers of a store that are altered on their way to a client. Nothing may
crash, hang or change a byte."""

import contextlib
import os
import random
import select
import socket
import threading
import time

import pytest
from store import ClientEnded, Puppet, check
from wire import ATTACH, FINAL, HELLO, INDEX, OFFER, PRIVATE, SPOKEN, STATUS, TAKEN, Wire, memory, page, words

SECONDS = {"short": 4, "long": 150}


def mutated(chance, message):
    """The message, or a mutation of it."""
    data = bytearray(message)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        kind = chance.randrange(7)
        if kind == 0 and data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[chance.randrange(len(data) + 1) :]
        elif kind == 2:
            data += chance.randbytes(chance.choice([1, 4, 8, 16, 1000]))
        elif kind == 3 and len(data) >= 4:
            at = chance.randrange(len(data) // 4) * 4
            data[at : at + 4] = words(
                chance.choice([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 4096, 4097, 1024, 1025])
            )
        elif kind == 4:
            data = data + data
        elif kind == 5 and data:
            at = chance.randrange(len(data))
            data[at:at] = chance.randbytes(chance.choice([1, 2, 4]))
        elif kind == 6 and data:
            at = chance.randrange(len(data))
            del data[at : at + chance.choice([1, 4, 8])]
    return bytes(data[:200000])


def a_file(chance):
    """A segment, or something like one."""
    kind = chance.randrange(8)
    if kind < 4:
        pages = chance.choice([1, 2, 3, 600])
        data = b"".join(page(chance.randrange(50), b"fuzz") for _ in range(pages))
        return memory(data, seals=FINAL if kind else chance.randrange(32)), pages
    if kind == 4:
        return memory(chance.randbytes(chance.randrange(9000))), 1
    if kind == 5:
        hollow = os.memfd_create("hollow", os.MFD_ALLOW_SEALING)
        os.ftruncate(hollow, chance.randrange(1 << 22))
        return hollow, chance.randrange(1000)
    if kind == 6:
        return os.open("/dev/null", os.O_RDWR), 1
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(), 1


def session(chance, store):
    """One conversation; returns its number of messages."""
    sent = 0
    with (
        Wire(store, hello=False, timeout=30) as wire,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        if chance.random() < 0.8:
            wire.ask(words(HELLO, SPOKEN))
        for _ in range(chance.randrange(1, 12)):
            kind = chance.randrange(6)
            files = []
            if kind == 0 or chance.random() < 0.1:
                file, count = a_file(chance)
                files.append(file)
                message = words(OFFER, count)
            else:
                message = [
                    words(HELLO, SPOKEN),
                    words(INDEX),
                    words(ATTACH, chance.randrange(40)),
                    words(PRIVATE) + chance.randbytes(16 * chance.randrange(20)),
                    words(STATUS),
                ][kind - 1]
            try:
                wire.send(mutated(chance, message), *files)
            except OSError as error:
                if error.errno not in (32, 104, 90):
                    raise
            finally:
                for file in files:
                    os.close(file)
            sent += 1
            if chance.random() < 0.9:
                ready, _, _ = select.select([wire.socket], [], [], 0.5)
                if not ready or not wire.receive()[0]:
                    break
    return sent


def test_requests(store, options):
    chance = random.Random(options.seed)
    with Puppet(store) as witness:
        witness.block(1, 64, 1)
        files, resident, sessions, sent = store.files(), store.resident_kib(), 0, 0
        end = time.monotonic() + SECONDS["long" if options.soak else "short"]
        while time.monotonic() < end:
            sent += session(chance, store)
            sessions += 1
            if sessions % 200 == 0:
                store.alive(f"while requests were fuzzed, seed {options.seed}, session {sessions}")
                witness.do("check 1", "advise 1 0")
        store.alive(f"while requests were fuzzed, seed {options.seed}")
        witness.do("check 1", "map 2 64", "fill 2 5", "advise 2 0", "check 2")
        check(
            store.resident_kib() < resident + 32768,
            f"the store grew from {resident} to {store.resident_kib()} KiB",
        )
        witness.end()
        store.empty("after fuzzing")
        check(store.files() <= files, f"the store had {files} files open, has {store.files()}")
        print(f"{sessions} sessions, {sent} messages")


class Between:
    """A proxy between clients and a store that alters the store's answers."""

    def __init__(self, store, chance, often=0.15, late=None):
        self.store, self.chance, self.often, self.late, self.altered = store, chance, often, late, 0
        self.path = store.folder / "between.socket"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen(16)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with contextlib.suppress(OSError):
                    self.relay(client)
                client.close()

    def relay(self, client):
        with Wire(self.store, hello=False) as wire:
            sides = {client: wire.socket, wire.socket: client}
            while True:
                for side in select.select(list(sides), [], [], 10)[0]:
                    data, files, _, _ = socket.recv_fds(side, 1 << 16, 8)
                    try:
                        if not data:
                            return
                        if side is wire.socket:
                            data = self.alter(data, files)
                        socket.send_fds(sides[side], [data], files)
                    finally:
                        for file in files:
                            os.close(file)

    def alter(self, data, files):
        if self.late and data[:4] == words(TAKEN):
            self.late = time.sleep(self.late)
        if self.chance.random() >= self.often:
            return data
        self.altered += 1
        if files and self.chance.random() < 0.3:
            os.close(files.pop())
        if self.chance.random() < 0.2:
            files.append(a_file(self.chance)[0])
        # Never nothing: the client would wait for its whole timeout.
        return mutated(self.chance, data) or b"?"

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_answers(store, options):
    """A client's pages stay right, and the client alive, under any answers."""
    chance = random.Random(options.seed + 1)
    between = Between(store, chance)
    end, rounds, failed = time.monotonic() + SECONDS["long" if options.soak else "short"], 0, 0
    while time.monotonic() < end:
        with Puppet(store, socket=between.path) as puppet:
            try:
                for n in range(12):
                    puppet.do(f"map {n} 64", f"fill {n} {1 + chance.randrange(3)}")
                    failed += puppet.ask(f"advise {n} 0", 30) != "ok"
                    puppet.do(f"check {n}")
                puppet.ask("unadvise 3")
                for n in range(12):
                    puppet.do(f"check {n}")
            except ClientEnded as reason:
                raise ClientEnded(f"seed {options.seed}, round {rounds}: {reason}") from None
            rounds += 1
    between.close()
    store.alive("behind altered answers")
    check(between.altered > 5, "no answer was altered")
    print(f"{rounds} clients, {between.altered} answers altered, {failed} calls failed")


def test_late_answer(store, options):
    """An answer that arrives after the client's timeout is not read as the next one."""
    if not options.soak:
        pytest.skip("takes as long as a client is patient, 20 s: only with --soak")
    between = Between(store, random.Random(1), often=0, late=21)
    with Puppet(store, socket=between.path) as puppet:
        puppet.do("map 1 64", "fill 1 1", "map 2 64", "fill 2 2")
        said = puppet.ask("advise 1 0", 30)
        check(said.split()[0] == "110", f"without an answer: {said}")
        time.sleep(2)
        puppet.do("check 1", "advise 2 0", "check 2", "advise 1 0", "check 1")
        check(puppet.private_kib(1) <= 16 and puppet.private_kib(2) <= 16, "afterwards nothing is shared")
    between.close()
    store.empty("after a late answer")
