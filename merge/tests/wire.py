"""Speaks the store's protocol, mostly wrongly on purpose. merge/src/base/protocol.rs defines it: one datagram
a message, little-endian words, a file sent with it."""

import array
import fcntl
import hashlib
import mmap
import os
import socket
import struct

PAGE = 4096
HELLO, INDEX, OFFER, ATTACH, PRIVATE, STATUS = range(1, 7)
CLAIM, REPORT, PROGRAMS = 7, 8, 9
SPOKEN = 4  # the protocol's version
WELCOME, INDEX_IS, TAKEN, ATTACHED, NOTED, STATUS_IS, REFUSED = range(1, 8)
FULL, NO_SEGMENT, WRONG, VERSION, EXHAUSTED = range(1, 6)
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16
FINAL = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE


def words(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def page(number, word=b"page"):
    """Contents that only this number has."""
    return (hashlib.sha256(b"%s %d" % (word, number)).digest() * 128)[:PAGE]


def memory(contents, seals=FINAL, name="pages", flags=os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING):
    file = os.memfd_create(name, flags)
    view = memoryview(contents)
    while view:
        view = view[os.write(file, view) :]
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


class Wire:
    """One connection. Files received with answers are in `files` until `close`."""

    def __init__(self, store, hello=True, timeout=30.0, path=None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.files = []
        self.socket.connect(str(path or store.socket))
        if hello:
            kind, body = self.ask(words(HELLO, SPOKEN))
            if kind != WELCOME:
                self.close()
                raise OSError(f"not welcome: {kind} {body!r}")
            self.identity, self.secret = struct.unpack_from("<Q", body)[0], body[8:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()
        self.drop()

    def drop(self):
        for file in self.files:
            os.close(file)
        self.files = []

    def send(self, message, *files):
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self.socket.sendmsg([message], beside)

    def receive(self):
        """(kind, body); kind 0 when the store has closed the connection."""
        try:
            data, beside, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(64))
        except ConnectionResetError:
            return 0, b""
        for level, kind, body in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(body[: len(body) // 4 * 4])
                self.files += numbers
        return (struct.unpack_from("<I", data)[0], data[4:]) if data else (0, b"")

    def ask(self, message, *files):
        try:
            self.send(message, *files)
        except (BrokenPipeError, ConnectionResetError):
            return 0, b""
        return self.receive()

    def offer(self, contents, count=None, **how):
        """Offers a segment; returns (kind, numbers or refusal)."""
        file = memory(contents, **how)
        try:
            return self.offer_file(file, len(contents) // PAGE if count is None else count)
        finally:
            os.close(file)

    def offer_file(self, file, count):
        kind, body = self.ask(words(OFFER, count), file)
        return kind, struct.unpack("<3I", body) if kind == TAKEN else body

    def attach(self, segment):
        return self.ask(words(ATTACH, segment))

    def status(self):
        return self.ask(words(STATUS))


def index_entries(file):
    """The shared index's contents: [(tag, segment, page)], and the number of entries for pages in private
    memory."""
    size = os.fstat(file).st_size
    with mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ) as table:
        magic, lines = struct.unpack_from("<8sQ", table)
        assert magic == b"mayflyi1", magic
        found, elsewhere = [], 0
        for tag, location in struct.iter_unpack("<QQ", table[PAGE : PAGE + lines * 64]):
            if location >> 32:
                found.append((tag, location >> 32, location & 0xFFFFFFFF))
            elif location == 2:
                elsewhere += 1
        return found, elsewhere
