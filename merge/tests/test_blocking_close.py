"""Files whose close blocks: other clients must not wait because of them."""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest
from attack import PAGES, attacked, undisturbed
from store import NOBODY, Puppet, Store, check, until
from wire import INDEX, OFFER, REFUSED, STATUS, Wire, words

LIBC = ctypes.CDLL(None, use_errno=True)
FORCE, DETACH = 1, 2
DIE_WITH_PARENT = 1


def serve_silently(device):
    """A file system (FUSE) with one file, that never answers FLUSH: a process that closes the file blocks for
    ever."""

    def attributes(node):
        mode = 0o40755 if node == 1 else 0o100666
        return struct.pack("<6Q10I", node, 4096, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    answers = {
        26: lambda node: struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 10, 10, 65536, 1, 0, 0, *[0] * 8),
        1: lambda node: struct.pack("<4Q2I", 2, 0, 1, 1, 0, 0) + attributes(2),  # lookup
        3: lambda node: struct.pack("<Q2I", 1, 0, 0) + attributes(node),  # getattr
        14: lambda node: struct.pack("<Q2I", 1, 0, 0),  # open
    }
    with contextlib.suppress(OSError):
        while True:
            message = os.read(device, 1 << 20)
            _, kind, unique, node = struct.unpack_from("<2I2Q", message)
            if kind in answers:
                body = answers[kind](node)
                os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
            elif kind not in (2, 25):  # forget needs no answer, flush gets none
                os.write(device, struct.pack("<IiQ", 16, -38, unique))


@contextlib.contextmanager
def silent_client(store, offers=1, uid=0):
    """A process that offers a file of such a file system, so many times, and stays. It alone has the file: a
    process that ends with a descriptor of it would block, too. Yields the store's last answer."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    mount = tempfile.mkdtemp(prefix="mayfly-fuse-")
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
            device = os.open("/dev/fuse", os.O_RDWR)
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
            if LIBC.mount(b"fuse", mount.encode(), b"fuse.silent", 0, options.encode()):
                os.write(theirs, b"no FUSE here")
                os._exit(0)
            threading.Thread(target=serve_silently, args=(device,), daemon=True).start()
            file = os.open(f"{mount}/file", os.O_RDONLY)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)  # cleared by the change of user
            for _ in range(offers):
                kind, _ = Wire(store).offer_file(file, 1)
            os.write(theirs, b"%d" % kind)
            time.sleep(600)
        os._exit(1)
    os.close(theirs)
    try:
        with os.fdopen(mine, "rb") as pipe:
            said = (
                until(lambda: select.select([pipe], [], [], 0)[0], "a client has offered", 30)
                and pipe.read1()
            )
        if not said.isdigit():
            pytest.skip(said.decode() or "no FUSE here")
        yield int(said)
    finally:
        # Ends the file system, and with it all waiting.
        LIBC.umount2(mount.encode(), FORCE)
        LIBC.umount2(mount.encode(), DETACH)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.rmdir(mount)


def test_silent_file_system(built):
    """A client offers a file whose close blocks: no other client waits for it, and after SIGKILL the next
    store gets the socket."""
    with Store(built) as store, Puppet(store) as witness:
        witness.block(1, PAGES, 1)
        with silent_client(store) as said:
            check(said in (0, REFUSED), f"a file of FUSE was answered with {said}")
            until(lambda: "close-fd" in threads_of(store), "the store closes the file", 10)
            start = time.monotonic()
            with Puppet(store) as other:
                other.block(1, PAGES, 7)
                other.do("check 1")
            waited = time.monotonic() - start
            check(waited < 5, f"others waited {waited:.1f} s")
            # Its thread waits in the kernel, so that the process does not end.
            store.process.send_signal(signal.SIGKILL)
            killed, store.process = store.process, None
            until(lambda: starts(store), "the next store takes the socket", 60)
        killed.wait(20)
        undisturbed(store, witness)
    print(f"another client waited {waited * 1000:.0f} ms")


def test_silent_files_of_one_user(built):
    """However many such files one user offers, the store still accepts other users' files."""
    with Store(built) as store, Puppet(store) as witness:
        witness.block(1, PAGES, 1)
        with silent_client(store, offers=100, uid=NOBODY) as said:
            check(said in (0, REFUSED), f"a file of FUSE was answered with {said}")
            check(20 < threads_of(store).count("close-fd") < 50, "the store closes some, and accepts no more")
            undisturbed(store, witness)


@contextlib.contextmanager
def slow_to_close():
    """Makes sockets whose last close blocks for two minutes, because data written to them is not read."""
    readers = []

    def one():
        with socket.create_server(("127.0.0.1", 0)) as server:
            writer = socket.create_connection(server.getsockname())
            readers.append(server.accept()[0])
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("2i", 1, 120))
        writer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                writer.send(bytes(1 << 16))
        return writer

    try:
        yield one
    finally:
        for reader in readers:
            reader.close()


def test_files_that_take_long_to_close(built):
    """No client waits for files that another client of the same domain has sent, wherever they are left."""

    def hand_in(store, slow, message, count=1, hello=True, before=()):
        files = [slow() for _ in range(count)]
        with Wire(store, hello=hello) as wire:
            os.kill(store.pid, signal.SIGSTOP)  # so that it has the last descriptors
            for earlier in before:
                wire.send(earlier)
            wire.send(message, *(file.fileno() for file in files))
            for file in files:
                file.close()
            os.kill(store.pid, signal.SIGCONT)

    with attacked(built) as (store, witness), slow_to_close() as slow:
        for message in (words(STATUS), words(OFFER, 1), words(INDEX), b"nonsense"):
            hand_in(store, slow, message)
            undisturbed(store, witness)
        hand_in(store, slow, words(OFFER, 1), count=3)
        hand_in(store, slow, words(OFFER, 1), hello=False)
        hand_in(store, slow, words(STATUS), before=[b""])
        undisturbed(store, witness)


def threads_of(store):
    names = []
    for task in pathlib.Path(f"/proc/{store.pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            names.append((task / "comm").read_text().strip())
    return names


def starts(store):
    store.start(wait=False)
    # It ends at once while the socket is in use. The killed store accepts connections, too, until it has
    # ended.
    with contextlib.suppress(subprocess.TimeoutExpired):
        store.process.wait(3)
        return False
    return True
