"""Several requests at once in one instance: a process for each, as Lambda's own client has it. Each loads the
function itself and then asks for work, so modules and their globals are a process's own.

Lambda's client leaves a request alone whose process has ended. Here the first process starts the others, and
where one ends it reports that and starts another.
"""

import fcntl
import mmap
import os
import signal
import socket
import sys
import time

from awslambdaric import bootstrap, lambda_runtime_client

ENDED = "POST /2018-06-01/runtime/mayfly/ended/%s HTTP/1.1\r\nHost: runtime\r\nConnection: close\r\n"
# What a process does, as the first one sees it: it loads the function, waits for a request, or has one.
LOADS, WAITS, SERVES = 0, 1, 2
# A process that ends sooner than this, and without a request, is not replaced: it would end again.
SOON_S = 1.0
# Clients older than several requests at once have one class.
CLIENT = "LambdaMultiConcurrentRuntimeClient"


class WholeLines:
    """A text stream that writes whole lines: all processes print to one pipe, where parts of lines mix."""

    def __init__(self, stream):
        self.stream, self.text = stream, ""

    def write(self, text):
        self.text += text
        if end := self.text.rfind("\n") + 1:
            self.put(end)
        return len(text)

    def writelines(self, lines):
        self.write("".join(lines))

    def flush(self):
        self.put(len(self.text))

    def put(self, end):
        whole, self.text = self.text[:end], self.text[end:]
        if whole:
            # The kernel releases the lock of a process that ends.
            fcntl.lockf(turn, fcntl.LOCK_EX)
            try:
                self.stream.write(whole)
                self.stream.flush()
            finally:
                fcntl.lockf(turn, fcntl.LOCK_UN)

    def __getattr__(self, name):
        return getattr(self.stream, name)


turn = os.memfd_create("turn")
bootstrap.Unbuffered = WholeLines


class Slot:
    """The place of one process, which has its number for the worker."""

    def __init__(self, memory, number):
        self.memory, self.number = memory, number

    def put(self, does):
        self.memory[self.number] = does

    def does(self):
        return self.memory[self.number]


def run(work, handler, most):
    """Runs as many processes as requests at once, until none is left. Passes SIGTERM on to them."""
    memory = mmap.mmap(-1, most)
    running, ends = {}, False

    def end(*_):
        nonlocal ends
        ends = True
        for process in running:
            os.kill(process, signal.SIGTERM)

    def start(slot):
        # A process that begins neither misses the signal nor passes it on.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        process = os.fork() if not ends else None
        if process == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            work.start(slot)
            client = getattr(lambda_runtime_client, CLIENT, lambda_runtime_client.LambdaRuntimeClient)
            bootstrap.run(handler, client(os.environ["AWS_LAMBDA_RUNTIME_API"]))
            os._exit(0)
        if process:
            running[process] = (slot, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    signal.signal(signal.SIGTERM, end)
    for number in range(most):
        start(Slot(memory, number))
    while running:
        # One that has ended keeps its number until it is waited for, and then is not signalled.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
        slot, started = running.pop(ended, (None, None))
        _, status = os.waitpid(ended, 0)
        if slot is None or ends:
            continue
        did = slot.does()
        report(work.address, slot.number, status)
        if did == SERVES or (did == WAITS and time.monotonic() - started > SOON_S):
            slot.put(LOADS)
            start(slot)
    sys.exit(not ends)


def report(address, process, status):
    """Tells the worker how a process has ended."""
    body = str(status)
    head = ENDED % process + f"Content-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall((head + body).encode())
            connection.recv(1)
    except OSError as error:
        print(f"mayfly: the end of a process is not reported: {error}", file=sys.stderr)
