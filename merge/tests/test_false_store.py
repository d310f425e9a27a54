"""The socket's path: clients do not trust another user's process there, and the store leaves other files
alone."""

import contextlib
import os
import signal
import socket
import struct
import tempfile

import pytest
from attack import PAGES
from store import NOBODY, Puppet, Store, check, until
from wire import (
    PAGE,
    REFUSED,
    WELCOME,
    memory,
    words,
)


def test_false_store(store):
    """Another user listens at the store's socket, or sends memory that it can still change."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/socket"
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(f"{path}.new")
            os.chmod(f"{path}.new", 0o777)
            listener.listen(8)
            os.rename(f"{path}.new", path)
            index = memory(struct.pack("<8sQ", b"mayflyi1", 4096) + bytes(PAGE - 16 + 4096 * 64), seals=0)
            with contextlib.suppress(BaseException):
                while True:
                    wire, _ = listener.accept()
                    wire.recv(100)
                    socket.send_fds(wire, [words(WELCOME) + bytes(8 + 192)], [index])
                    while wire.recv(1 << 16):
                        wire.send(words(REFUSED, 1) + b"no")
            os._exit(0)
        try:
            until(lambda: os.path.exists(path), "the false store listens")
            with Puppet(store, socket=path) as puppet:
                puppet.do("map 1 64", "fill 1 1")
                said = puppet.ask("advise 1 0")
                check(
                    said != "ok" and "uid" in said.lower() or "user" in said.lower(),
                    f"another user's store is trusted: {said!r}",
                )
                puppet.do("check 1")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_socket_path(store, built):
    """The store leaves what already exists at its socket's path: files, links, other stores."""
    other = Store(built)
    try:
        other.socket = store.socket
        other.start(wait=False)
        check(other.process.wait(60) != 0, "a second store takes the first one's place")
        check(
            "mayfly" in other.log_text() and len(other.log_text().strip().splitlines()) <= 2,
            f"it logs {other.log_text()!r}",
        )
        with Puppet(store) as puppet:
            puppet.block(1, PAGES, 1)
        for make in (
            lambda path: path.write_text("precious"),
            lambda path: path.symlink_to(other.folder / "log"),
            lambda path: path.mkdir(),
        ):
            path = other.folder / "taken"
            make(path)
            other.socket = path
            other.start(wait=False)
            try:
                status = other.process.wait(60)
            except Exception:
                status = None
                other.kill()
            check(status not in (None, 0), f"a store starts on a path that is taken by {path.stat()}")
            check(
                path.is_symlink() or path.is_dir() or path.read_text() == "precious",
                "a file was overwritten",
            )
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    finally:
        other.__exit__(None)
