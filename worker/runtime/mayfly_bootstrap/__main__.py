"""Runs a function with Lambda's own runtime client, and rests while the instance has no work: idle work that
returns free heap memory and shares pages.

It replaces two calls of the client. `next`: an instance that received no work for a while first returns its
heap's free memory and shares its pages with the function's other instances. Arriving work ends the rest. And
`post_invocation_result`: the answer and the next GET travel in one message on one connection, so that an
instance wakes once for each request.

An instance asks for its first work as soon as possible: it imports the modules that only a rest needs at
its first rest (rest.py), and the worker compiles these files once, when it installs them beside Lambda's
client.
"""

import _socket  # `socket` without the modules that take 2 ms to import and many functions never need
import os
import select
import sys
import time

import runtime_client
from awslambdaric import __main__ as client
from awslambdaric import lambda_runtime_client

# The worker freezes an instance that has no work, and thaws it for the rests that it announces here.
NEXT = (
    "GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nHost: runtime\r\nMayfly-Rests-After-Ms: %s\r\n%s\r\n"
)
ANSWER = (
    "POST /2018-06-01/runtime/invocation/%s/response HTTP/1.1\r\nHost: runtime\r\nContent-Type: %s\r\n"
    "Content-Length: %d\r\n\r\n"
)
# An instance rests after this long without work: at first, and for as long as its rests are worth it.
IDLE_S = 0.3
# A rest is worth it if no work arrives for this long after it. If not, the next one waits twice as long, up
# to MOST_IDLE_S.
WORTH_S = 5.0
MOST_IDLE_S = 60.0
# Wait before the next attempt while another instance of the function merges.
AGAIN_S = 0.2
# An instance that is never idle tries to merge between requests, this long after its start, and then each
# time after twice as long, until it has merged all. One that never receives work merges then, so that its
# pages are shared, too.
FIRST_S = 5.0
# An instance that has written since it merged merges again after this long without work, even if the next
# merge is not due. If work arrives soon after, that was not worth it, and the next time it waits twice as
# long, up to the most.
LONG_S = 5.0
LONG_WORTH_S = 60.0
MOST_LONG_S = 600.0
# Where merging failed (the page store has ended, another thread is in a system call), the rest is repeated
# after this long, and each time after twice as long.
RETRY_S = 5.0
MOST_RETRY_S = 600.0


class Pace:
    """How long an instance waits for work before it rests. It must fault in again the memory that it returns,
    so one that is called every second rests seldom."""

    def __init__(self):
        self.pause_s = IDLE_S
        self.rested_at = None

    def rested(self, now):
        self.rested_at = now

    def worked(self, now):
        if self.rested_at is None:
            return
        if now - self.rested_at < WORTH_S:
            self.pause_s = min(2 * self.pause_s, MOST_IDLE_S)
        else:
            self.pause_s = IDLE_S
        self.rested_at = None


class Connection:
    """Requests to the worker one after another, and their answers in order. Where the worker closes the
    connection before it has sent a byte of an answer, they are sent once more on another."""

    def __init__(self, address):
        self.address = address
        self.socket = None
        self.sent = b""
        self.got = b""  # received bytes of answers, not parsed yet
        self.may_repeat = False

    def send(self, requests):
        self.sent, self.may_repeat = requests, self.socket is not None
        try:
            self.write()
        except OSError:
            self.reconnect()

    def write(self):
        if self.socket is None:
            connecting = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
            connecting.connect(self.address)
            connecting.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self.socket = connecting
        self.socket.sendall(self.sent)

    def reconnect(self):
        if not self.may_repeat:
            raise RuntimeError("the worker closed the connection")
        self.may_repeat = False
        self.socket.close()
        self.socket = None
        self.write()

    def has_answer(self, timeout_s):
        """Whether an answer, or the beginning of one, arrives within the timeout."""
        return bool(self.got) or bool(select.select([self.socket], [], [], timeout_s)[0])

    def more(self):
        try:
            part = self.socket.recv(1 << 20)
        except ConnectionError:
            part = b""
        if part:
            self.may_repeat = False
            self.got += part
        else:
            self.reconnect()

    def receive(self):
        """Status, headers and body of the next answer."""
        while (end := self.got.find(b"\r\n\r\n")) < 0:
            self.more()
        status, *lines = self.got[:end].decode().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.title()] = value
        body, whole = end + 4, end + 4 + int(headers.get("Content-Length", 0))
        if len(self.got) < whole:
            parts, left = [self.got], whole - len(self.got)
            while left > 0:
                self.got = b""
                self.more()
                parts.append(self.got)
                left -= len(self.got)
            self.got = b"".join(parts)
        content, self.got = self.got[body:whole], self.got[whole:]
        return status.split(" ")[1], headers, content


class Work:
    """Asks the worker for work, and rests while there is none."""

    def __init__(self, address, merges):
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.connection = Connection(self.address)
        self.answer = b""
        self.merges = merges
        # A folder that all of the function's instances see: they lock it to merge one at a time.
        socket_path = os.environ.get("MAYFLY_SHARE_SOCKET")
        self.place = os.path.dirname(socket_path) if socket_path else os.environ["LAMBDA_TASK_ROOT"]
        self.asked = 0
        self.merge_when_asked = 2  # after the first answer, when the function has loaded its late imports
        self.started = time.monotonic()
        self.has_merged = False
        self.merged_at = 0  # `asked` of the last merge of all
        self.rested_for = 0  # `asked` of the last rest
        self.long_s, self.long_rest_at = LONG_S, None
        self.busy_try_s = FIRST_S  # after the start
        self.retry_s = RETRY_S
        self.pace = Pace()
        self.slot, self.process = None, ""
        self.snapshot = None  # the module, once a copy of a snapshot begins

    def start(self, slot):
        """Begins in a process of its own, beside others (several.py)."""
        self.slot = slot
        self.process = f"Mayfly-Process: {slot.number}\r\n"
        self.started = time.monotonic()
        rests_in_this_process()

    def post_invocation_result(self, request, payload, kind="application/json", invocation=None):
        """Replaces runtime_client's: `next`, which follows at once, sends the answer with its GET."""
        if invocation is not None:
            raise RuntimeError("the worker names no invocation beside the request")
        self.answer = (ANSWER % (request, kind, len(payload))).encode() + payload

    def next(self):
        """Replaces runtime_client's: the event and its headers."""
        if self.slot:
            # What is no whole line yet (several.py).
            sys.stdout.flush()
            sys.stderr.flush()
        self.asked += 1
        if self.snapshot:
            self.snapshot.done()
            self.snapshot = None
        pause = self.pace.pause_s
        rests_after = [max(pause, FIRST_S - self.age()) if self.merges and self.asked == 1 else pause]
        is_busy = self.merges and not self.has_merged and self.asked > 2 and self.age() > self.busy_try_s
        if is_busy:
            rests_after.insert(0, 0)
        after_ms = ",".join(str(int(after * 1000)) for after in rests_after)
        request = (NEXT % (after_ms, self.process)).encode()
        answers, self.answer = self.answer, b""
        self.connection.send(answers + request)
        if answers:
            status, _, reason = self.connection.receive()
            if status != "202" and self.slot is None:
                raise RuntimeError(f"Failed to post invocation response: {status} {reason.decode()}")
            if status != "202":
                # As of Lambda's client: the request took too long, or its process was thought to have ended.
                print(f"mayfly: an answer was refused: {status} {reason.decode()}", file=sys.stderr)
        if self.slot:
            self.slot.put(several.WAITS)
        if is_busy and not self.connection.has_answer(0):
            self.busy_try_s = 2 * self.age()
            self.rest(self.connection.socket.fileno(), is_busy)
        while not self.connection.has_answer(pause):
            pause = self.rest(self.connection.socket.fileno())
        status, headers, event = self.connection.receive()
        if status != "200":
            raise RuntimeError(f"Failed to get next: {status}")
        self.pace.worked(time.monotonic())
        self.worked_after_long_rest(time.monotonic())
        if self.slot:
            self.slot.put(several.SERVES)
        headers["Lambda-Runtime-Deadline-Ms"] = int(headers["Lambda-Runtime-Deadline-Ms"])
        return event, headers

    def rest(self, work, is_busy=False):
        """Rests, and returns after how many seconds without work it should rest again: soon if it was too
        early, or if another instance of the function merges now (both would be slower). None: all is done."""
        if self.merges and self.asked == 1 and not self.is_old():
            return AGAIN_S  # work may still arrive
        try:
            from . import rest
        except (ImportError, OSError) as error:
            # In an image: its Python has no ctypes, or the library needs a newer C library.
            print(f"mayfly: this instance does not rest: {error}", file=sys.stderr)
            runtime_client.next, runtime_client.post_invocation_result = original_calls
            return None
        is_long = self.rested_for == self.asked
        self.rested_for = self.asked
        is_merge_time = self.asked >= self.merge_when_asked or self.asked == 1 or is_long
        merges = self.merges and is_merge_time and rest.has_room()
        if merges:
            with rest.turn(self.place) as is_ours:
                if not is_ours:
                    return AGAIN_S
                outcome = self.rest_alone(rest, work, merges)
        else:
            outcome = self.rest_alone(rest, work, merges)
        again = None
        if not is_busy:
            again = self.retry_delay(outcome)
            self.pace.rested(time.monotonic())
            if is_long:
                self.long_rest_at = time.monotonic()
            elif again is None and self.merges and self.merged_at != self.asked:
                again = self.long_s
        # The worker may freeze it at once, so the lock must be released by now.
        rest.report(self.address, {**outcome, "again_after_ms": again and int(again * 1000)})
        return again

    def worked_after_long_rest(self, now):
        if self.long_rest_at is not None:
            was_worth_it = now - self.long_rest_at > LONG_WORTH_S
            self.long_s = LONG_S if was_worth_it else min(2 * self.long_s, MOST_LONG_S)
            self.long_rest_at = None

    def retry_delay(self, outcome):
        """Seconds after which to repeat a rest without work in between, or None."""
        if not outcome["errno"]:
            self.retry_s = RETRY_S
            return None
        again, self.retry_s = self.retry_s, min(2 * self.retry_s, MOST_RETRY_S)
        return again

    def is_old(self):
        return self.age() > FIRST_S

    def age(self):
        return time.monotonic() - self.started

    def rest_alone(self, rest, work, merges):
        """Rests, and returns its report for the worker."""
        outcome = rest.rest(work, merges, freezes=merges and not self.has_merged)
        if merges and outcome["complete"]:
            self.has_merged, self.merged_at = True, self.asked
            # Later changes are worth merging ever more seldom.
            self.merge_when_asked = 2 * self.asked
        return outcome


# Newer clients have two classes with this one's calls.
BaseClient = getattr(
    lambda_runtime_client, "BaseLambdaRuntimeClient", lambda_runtime_client.LambdaRuntimeClient
)
start_client = BaseClient.__init__


def start_without_thread(self, address, *_, **__):
    """From Python 3.12 on Lambda's client asks for work in a thread of its own, because its call, in C, holds
    up signals. Work.next, in Python, does not. A rest in that thread would leave in memory what the heap
    caches for the main one, which runs the function."""
    start_client(self, address)


def rests_in_this_process():
    # mayfly.advise only records regions in this process; its rests share them.
    if "MAYFLY_MERGE_LIBRARY" in os.environ:
        os.environ["MAYFLY_RESTING_PROCESS"] = str(os.getpid())


def is_taken():
    """Has the client wait to be taken as a snapshot, in place of asking the Runtime API when to go on."""
    from . import snapshot

    snapshots = snapshot.Snapshots(work, rests_in_this_process)
    work.snapshot = snapshot
    BaseClient.restore_next = lambda client: snapshots.restore_next()
    if "MAYFLY_SNAPSHOT_PRIMED" in os.environ:
        snapshot.primes(client.bootstrap)
    for name in ("report_restore_error", "post_init_error"):
        setattr(BaseClient, name, lambda client, error, *_: snapshots.report_error(error))


BaseClient.__init__ = start_without_thread
rests_in_this_process()
work = Work(os.environ["AWS_LAMBDA_RUNTIME_API"], "MAYFLY_MERGE_LIBRARY" in os.environ)
original_calls = runtime_client.next, runtime_client.post_invocation_result
runtime_client.next = work.next
runtime_client.post_invocation_result = work.post_invocation_result
if "MAYFLY_SNAPSHOT" in os.environ:
    is_taken()
at_once = os.environ.get("AWS_LAMBDA_MAX_CONCURRENCY")
if at_once:
    from . import several

    several.run(work, sys.argv[1], int(at_once))
else:
    client.main(sys.argv)
