"""Runs a function with Lambda's own runtime client, and lets the instance rest while it has no work.

Two calls of the client are replaced. Asking for work: an instance that got none for a while first gives back
what its heap holds free, and shares its pages with the function's other instances. Work that comes in
meanwhile ends the rest. And answering: the answer goes with the next question, in one message on one
connection, so that an instance wakes once for each request.

An instance asks for its first work as soon as may be: what is only needed to rest is imported then (rest.py),
and these modules are compiled once, when the worker installs them beside Lambda's client.
"""

import _socket  # `socket` without what costs 2 ms to import, and many a function never needs
import os
import select
import sys
import time

import runtime_client
from awslambdaric import __main__ as client

# The worker freezes an instance that has no work, and lets it run when it has said that it wants to rest.
NEXT = (
    "GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nHost: runtime\r\nMayfly-Rests-After-Ms: %s\r\n\r\n"
)
ANSWER = (
    "POST /2018-06-01/runtime/invocation/%s/response HTTP/1.1\r\nHost: runtime\r\nContent-Type: %s\r\n"
    "Content-Length: %d\r\n\r\n"
)
# Without work for so long, an instance rests: at first, and for as long as rests turn out to be worth it.
IDLE_S = 0.3
# A rest is worth it if there is no work for so long after it. If not, the next one waits twice as long, up to
# MOST_IDLE_S.
WORTH_S = 5.0
MOST_IDLE_S = 60.0
# While another instance of the function merges, it waits so long again.
AGAIN_S = 0.2
# One that is never idle tries to merge in between, so long after it has started, and then each time after
# twice as long, until it has merged all; one that never gets work merges then: their pages are shared too.
FIRST_S = 5.0
# Where merging failed (the page store is gone, another thread is in a system call), a rest is repeated after
# so long, and each time after twice as long.
RETRY_S = 5.0
MOST_RETRY_S = 600.0


class Pace:
    """How long an instance waits for work before it rests: what it gives back it must fetch again, so one
    that is called every second rests seldom."""

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
    """Requests to the worker one after another, and their answers in order. Where the worker has closed the
    connection before a byte of an answer came, they are sent once more on another."""

    def __init__(self, address):
        self.address = address
        self.socket = None
        self.sent = b""
        self.got = b""  # of the answers to what was sent, and not taken yet
        self.may_repeat = False

    def send(self, requests):
        self.sent, self.may_repeat = requests, self.socket is not None
        try:
            self.write()
        except OSError:
            self.again()

    def write(self):
        if self.socket is None:
            connecting = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
            connecting.connect(self.address)
            connecting.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self.socket = connecting
        self.socket.sendall(self.sent)

    def again(self):
        if not self.may_repeat:
            raise RuntimeError("the worker closed the connection")
        self.may_repeat = False
        self.socket.close()
        self.socket = None
        self.write()

    def has_answer(self, timeout_s):
        """Whether there is one, or the beginning of one, within so long."""
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
            self.again()

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
    """Asks the worker for work, and rests meanwhile."""

    def __init__(self, address, merges):
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.connection = Connection(self.address)
        self.answer = b""
        self.merges = merges
        # A folder that the function's instances see, to take turns by.
        socket_path = os.environ.get("MAYFLY_SHARE_SOCKET")
        self.place = os.path.dirname(socket_path) if socket_path else os.environ["LAMBDA_TASK_ROOT"]
        self.asked = 0
        self.rest_when_asked = 2  # after the first answer: then all that the function loads late is there
        self.started = time.monotonic()
        self.has_merged = False
        self.busy_try_s = FIRST_S  # after the start
        self.retry_s = RETRY_S
        self.pace = Pace()

    def post_invocation_result(self, request, payload, kind="application/json", invocation=None):
        """In place of runtime_client's: the answer goes with the next question, which is asked at once."""
        if invocation is not None:
            raise RuntimeError("the worker names no invocation beside the request")
        self.answer = (ANSWER % (request, kind, len(payload))).encode() + payload

    def next(self):
        """What runtime_client.next gives: the event and its headers."""
        self.asked += 1
        pause = self.pace.pause_s
        rests_after = [max(pause, FIRST_S - self.age()) if self.merges and self.asked == 1 else pause]
        is_busy = self.merges and not self.has_merged and self.asked > 2 and self.age() > self.busy_try_s
        if is_busy:
            rests_after.insert(0, 0)
        question = (NEXT % ",".join(str(int(after * 1000)) for after in rests_after)).encode()
        answers, self.answer = self.answer, b""
        self.connection.send(answers + question)
        if answers:
            status, _, said = self.connection.receive()
            if status != "202":
                raise RuntimeError(f"Failed to post invocation response: {status} {said.decode()}")
        if is_busy and not self.connection.has_answer(0):
            self.busy_try_s = 2 * self.age()
            self.rest(self.connection.socket.fileno(), is_busy)
        while not self.connection.has_answer(pause):
            pause = self.rest(self.connection.socket.fileno())
        status, headers, event = self.connection.receive()
        if status != "200":
            raise RuntimeError(f"Failed to get next: {status}")
        self.pace.worked(time.monotonic())
        headers["Lambda-Runtime-Deadline-Ms"] = int(headers["Lambda-Runtime-Deadline-Ms"])
        return event, headers

    def rest(self, work, is_busy=False):
        """Rests, and gives after how long it should again without work: soon if it was too early, or if
        another instance of the function merges now (together they would be slower); None: all is done."""
        if self.merges and self.asked == 1 and not self.is_old():
            return AGAIN_S  # there may be work yet
        try:
            from . import rest
        except (ImportError, OSError) as error:
            # In an image: its Python has no ctypes, or the library needs a newer C library.
            print(f"mayfly: this instance does not rest: {error}", file=sys.stderr)
            runtime_client.next, runtime_client.post_invocation_result = theirs
            return None
        due = self.asked >= self.rest_when_asked or self.asked == 1
        merges = self.merges and due and rest.has_room()
        if merges:
            with rest.turn(self.place) as is_ours:
                if not is_ours:
                    return AGAIN_S
                told = self.rest_alone(rest, work, merges)
        else:
            told = self.rest_alone(rest, work, merges)
        again = None
        if not is_busy:
            again = self.again(told)
            self.pace.rested(time.monotonic())
        # It may be frozen at once, and then must have no turn.
        rest.tell(self.address, {**told, "again_after_ms": again and int(again * 1000)})
        return again

    def again(self, told):
        """After how long a rest is worth repeating without work in between."""
        if not told["errno"]:
            self.retry_s = RETRY_S
            return None
        again, self.retry_s = self.retry_s, min(2 * self.retry_s, MOST_RETRY_S)
        return again

    def is_old(self):
        return self.age() > FIRST_S

    def age(self):
        return time.monotonic() - self.started

    def rest_alone(self, rest, work, merges):
        """Rests, and gives what is to be told of it."""
        told = rest.rest(work, merges, freezes=merges and not self.has_merged)
        if merges and told["complete"]:
            self.has_merged = True
            # What has changed since is worth looking at ever more seldom.
            self.rest_when_asked = 2 * self.asked
        return told


# What the function's code advises is noted, and shared while the instance rests.
if "MAYFLY_MERGE_LIBRARY" in os.environ:
    os.environ["MAYFLY_RESTING_PROCESS"] = str(os.getpid())
work = Work(os.environ["AWS_LAMBDA_RUNTIME_API"], "MAYFLY_MERGE_LIBRARY" in os.environ)
theirs = runtime_client.next, runtime_client.post_invocation_result
runtime_client.next = work.next
runtime_client.post_invocation_result = work.post_invocation_result
client.main(sys.argv)
