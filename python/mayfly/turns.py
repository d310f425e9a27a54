"""later: shares once a program has begun its work, one process of several at a time, so that neither their
starts nor their first answers wait for it (UPM §VII)."""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TURN = Path(__file__)  # any file that all processes of this package can open
LONGEST_WAIT_S = 60.0
begun: dict[tuple[int, Any], object] = {}


def later(share: Callable[[], Any]) -> None:
    """Calls `share` once in this process, on a thread of its own, and returns at once.

        def share():
            app.model = mayfly.pack(app.model)
            mayfly.advise(app.model, required=False)

    For servers with many workers: call it once a worker has answered, or is ready to. Further calls with the
    same function do nothing. Of all processes that call it one shares at a time. Then the others have the
    processors for their work, and the next one finds its pages in the store. An exception of `share` is
    printed as any thread's is.
    """
    ours = object()
    # A child of this process shares the pages that it has written since. No lock: a fork could leave it held.
    if begun.setdefault((os.getpid(), share), ours) is not ours:
        return
    threading.Thread(target=in_turn, args=(share,), name="mayfly-later", daemon=True).start()


def in_turn(share: Callable[[], Any]) -> None:
    """Calls `share` when it is this process's turn."""
    with turn():
        share()


@contextlib.contextmanager
def turn(file: Path = TURN, longest_s: float = LONGEST_WAIT_S) -> Iterator[None]:
    """Held by one process at a time. A process that has waited `longest_s` continues without the lock,
    since a stopped process must not keep the others from sharing. The kernel releases the lock of a process
    that dies."""
    with file.open("rb") as held:
        end = time.monotonic() + longest_s
        # Some network file systems have no locks for files open to read: then no process waits.
        with contextlib.suppress(OSError):
            while not taken(held.fileno()) and time.monotonic() < end:
                time.sleep(0.01)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_UN)  # a child forked meanwhile has the file open, too


def taken(descriptor: int) -> bool:
    """Locks this file if no other process has; returns whether it did."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
