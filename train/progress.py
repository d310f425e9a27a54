"""Progress on stderr: on a terminal a clock that ticks each second, else a line once a stage takes longer
than two seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

TICK_SECONDS = 1.0
SILENT_SECONDS = 2.0
_detail = ""


@contextlib.contextmanager
def stage(what: str) -> Iterator[None]:
    """Shows what the block does, for as long as it runs."""
    global _detail
    _detail = ""
    if not sys.stderr.isatty():
        late = threading.Timer(SILENT_SECONDS, say, [what])
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            # Joined, since Python aborts a program that exits while a thread writes to stderr.
            late.cancel()
            late.join()
        return
    done = threading.Event()
    begun = time.monotonic()

    def tick() -> None:
        while True:
            detail = f", {_detail}" if _detail else ""
            sys.stderr.write(f"\r\x1b[2Kmayfly: {what}{detail}, {time.monotonic() - begun:.0f} s")
            sys.stderr.flush()
            if done.wait(TICK_SECONDS):
                return

    clock = threading.Thread(target=tick, daemon=True)
    clock.start()
    try:
        yield
    finally:
        done.set()
        clock.join()
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def detail(text: str) -> None:
    """Sets how far the stage is; its clock shows it at the next tick."""
    global _detail
    _detail = text


def say(line: str) -> None:
    """Prints a line of its own."""
    # In one write: several threads print.
    sys.stderr.write(f"mayfly: {line}\n")
    sys.stderr.flush()
