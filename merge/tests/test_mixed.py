"""Everything at once: random operations whose every byte is checked, stores and clients killed at arbitrary
points, untrusted clients with forged files and nonsense, and programs that move, drop and grow what they have
advised, under every allocator. At the end nothing may be left. `--soak` runs it for half an hour, `-k
everything_at_once --seconds N` for N s."""

import contextlib
import os
import random
import socket
import subprocess
import time

import pytest
from allocators import ALLOCATORS, AT_ONCE, preloaded
from store import Store, check, status_text
from wire import (
    ATTACH,
    CLAIM,
    HELLO,
    INDEX,
    OFFER,
    PRIVATE,
    PROGRAMS,
    REPORT,
    SPOKEN,
    STATUS,
    Wire,
    memory,
    page,
    words,
)
from workers import Workers

CASES = ["dropping", "growing", "moving", "protecting", "forking", "allocator"]
PROCESSES = 6
BESIDE = 2  # programs that move and drop at a time
PATIENCE = 300


def forged(chance):
    """A file that is not a segment, or differs from its announcement; and the announced number of pages."""
    data = b"".join(page(chance.randrange(1000), b"forged") for _ in range(chance.choice([1, 4, 40])))
    count = len(data) // 4096
    match chance.randrange(7):
        case 0:
            return memory(data, seals=chance.choice([0, 2, 4, 8, 12, 22, 23])), count
        case 1:
            return memory(data), chance.choice([0, count + 1, 4097, 0x7FFFFFFF, 0xFFFFFFFF])
        case 2:
            hollow = memory(b"", seals=0)
            os.ftruncate(hollow, count * 4096)
            return hollow, count
        case 3:
            return os.open(chance.choice(["/dev/zero", "/proc/self/maps", "/"]), os.O_RDONLY), 1
        case 4:
            reader, writer = os.pipe()
            os.close(writer)
            return reader, 1
        case 5:
            return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), 1
        case _:
            return memory(data), count  # a valid one, of no use to other clients


def untrusted_client(store, chance):
    """One connection of an untrusted client. Any answer is right, and none, too, as long as others are not
    disturbed."""
    with contextlib.suppress(OSError), Wire(store, hello=chance.random() < 0.9, timeout=1) as wire:
        for _ in range(chance.randrange(1, 12)):
            match chance.randrange(4):
                case 0 | 1:
                    file, count = forged(chance)
                    try:
                        wire.ask(words(OFFER, count), file)
                    finally:
                        os.close(file)
                case 2:
                    kind = chance.choice(
                        [HELLO, INDEX, ATTACH, PRIVATE, STATUS, CLAIM, REPORT, PROGRAMS, SPOKEN, 99]
                    )
                    wire.ask(words(kind) + chance.randbytes(4 * chance.choice([0, 1, 2, 4, 6, 400])))
                case _:
                    wire.send(chance.randbytes(chance.randrange(1, 3000)))  # and does not wait


class Programs:
    """programs/anonymous_semantics.c, a case and an allocator by chance, a few at a time."""

    def __init__(self, built, store, chance):
        self.built, self.store, self.chance = built, store, chance
        self.running, self.done, self.killed = {}, 0, 0

    def start(self):
        case = self.chance.choice(CASES)
        preload = preloaded(self.built, self.chance.choice(list(ALLOCATORS)))
        more = AT_ONCE | ({"LD_PRELOAD": str(preload)} if preload and preload.exists() else {})
        program = subprocess.Popen(
            [self.built.program("anonymous_semantics"), case, "outages"],
            env=self.built.environment(self.store.socket, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running[program] = (f"{case} under {preload}", time.monotonic())

    def go_on(self):
        for program, (what, since) in list(self.running.items()):
            if program.poll() is None:
                check(time.monotonic() - since < PATIENCE, f"{what}: hangs")
                if self.chance.random() < 0.02:
                    program.kill()
                    program.communicate()
                    del self.running[program]
                    self.killed += 1
                continue
            self.judge(program, what)
        while len(self.running) < BESIDE:
            self.start()

    def judge(self, program, what):
        err = program.communicate(timeout=PATIENCE)[1]
        check(program.returncode == 0, f"{what}: {status_text(program.returncode)}: {err.strip()[-1000:]}")
        del self.running[program]
        self.done += 1

    def end(self):
        for program, (what, _) in list(self.running.items()):
            self.judge(program, what)

    def kill(self):
        for program in self.running:
            program.kill()
            program.communicate()


def test_everything_at_once(built, options):
    if not options.seconds:
        pytest.skip("half an hour: only with --soak, or for --seconds N")
    with Store(built) as store:
        chance = random.Random(options.seed)
        programs = Programs(built, store, chance)
        stores = visits = 0
        next_kill = 0.0

        def disturb(_):
            nonlocal stores, visits, next_kill
            store.alive("in the midst of everything")
            programs.go_on()
            untrusted_client(store, chance)
            visits += 1
            if time.monotonic() > next_kill:
                store.kill()
                time.sleep(chance.random() * 0.2)
                store.start()
                stores += 1
                next_kill = time.monotonic() + chance.uniform(1, 6)

        workers = Workers(built, store, options, PROCESSES, 400 * PROCESSES, ("outages",), name="mixed")
        try:
            operations = workers.go(every=0.05, disturb=disturb, seconds=options.seconds)
            programs.end()
        finally:
            programs.kill()
        store.alive("after everything")
        store.empty("after everything")
    check(
        stores and visits and programs.done,
        f"{stores} stores killed, {visits} visits, {programs.done} programs",
    )
    print(
        f"{stores} stores and {workers.killed + programs.killed} clients killed, {visits} untrusted clients, "
        f"{programs.done} programs; {workers.summary(operations)}"
    )
