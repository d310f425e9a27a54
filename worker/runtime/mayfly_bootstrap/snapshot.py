"""Waits to be taken as a snapshot, and begins anew as one of its copies (SnapStart).

Lambda's client runs the function's hooks around `restore_next`, which this replaces. The process waits there
before it has connected to anything. A copy receives its own environment, and what must be unique is made so.
"""

import json
import os
import sys
import time

from . import rest

# The descriptor of the line to the worker (worker_snapshot::WAITS).
LINE = 9


class Snapshots:
    """Replaces the client's calls about restoring."""

    def __init__(self, work, rests_in_this_process):
        self.work, self.rests_in_this_process = work, rests_in_this_process

    def restore_next(self):
        """Is taken, and returns in each copy."""
        rest.before_snapshot()
        # The copies return from the first read.
        begin(told(wait()))
        self.work.started = time.monotonic()
        self.rests_in_this_process()

    def report_error(self, error):
        """Tells the worker that the function or a hook has failed, before the client ends the process."""
        text = error.get("errorMessage", "") if isinstance(error, dict) else str(error)
        write(b"E" + text.encode("utf-8", "replace")[:1000])


def primes(client):
    """Has the client call the handler once it is imported, before the hooks, with the worker's event."""
    get_handler = client._get_handler

    def primed(name):
        handler = get_handler(name)
        invocation = told()
        deadline = int(time.time() * 1000) + invocation["ms"]
        context = client.LambdaContext(invocation["id"], None, None, deadline, invocation["arn"])
        try:
            handler(invocation["event"], context)
        except Exception as error:
            raise RuntimeError(f"the event that primes it: {type(error).__name__}: {error}") from error
        return handler

    client._get_handler = primed


def told(line=b""):
    """What the worker tells, by a line that has begun so."""
    while not line.endswith(b"\n"):
        part = os.read(LINE, 1 << 16)
        if not part:
            os._exit(0)  # the worker has ended
        line += part
    return json.loads(line)


def wait():
    """Tells the worker that the process waits, and waits."""
    write(b"W")
    return os.read(LINE, 1 << 16)


def write(text):
    os.write(LINE, text)


def begin(environment):
    """Begins as a copy, with an environment of its own."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    make_unique()


def make_unique():
    """Seeds the generators that modules have from the system's entropy. Generators that the function has made
    itself are its own to seed, in a hook."""
    seeds = (
        ("random", "seed", ()),
        ("numpy.random", "seed", ()),
        ("torch", "seed", ()),
        ("ssl", "RAND_add", (os.urandom(64), 64.0)),
    )
    for name, seed, arguments in seeds:
        if module := sys.modules.get(name):
            getattr(module, seed)(*arguments)
    if uuid := sys.modules.get("uuid"):
        uuid._node = uuid._last_timestamp = None
    if multiprocessing := sys.modules.get("multiprocessing.process"):
        multiprocessing.current_process().authkey = os.urandom(32)


def done():
    """Tells the worker that the copy runs; it asks for work next."""
    write(b"K")
    os.close(LINE)
