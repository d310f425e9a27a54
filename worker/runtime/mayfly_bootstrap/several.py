"""Several requests at once in one instance: a process for each, as Lambda's own client has it. Each loads the
function itself and then asks for work, so modules and their globals are a process's own.

Lambda's client leaves a request alone whose process has ended. Here the first process starts the others, and
where one ends it reports that and starts another.

Processes merge equal pages, and a page with pointers is equal only if objects lie at the same addresses. So
all begin with the same heap: the first process keeps what it knows of them in arrays that it has from the
start, and makes no object that lasts. What its loop needs for a while lies in memory that a trial has left
free.
"""

import fcntl
import gc
import mmap
import os
import signal
import socket
import sys
import time
from array import array

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


class Processes:
    """The processes of an instance, by number."""

    def __init__(self, work, handler, most):
        self.work, self.handler = work, handler
        self.does = mmap.mmap(-1, most)
        self.processes = array("i", bytes(4 * most))  # 0: none
        self.started = array("d", bytes(8 * most))
        self.begun = array("i", [0])
        self.ends, self.is_trial = False, False
        client = getattr(lambda_runtime_client, CLIENT, lambda_runtime_client.LambdaRuntimeClient)
        self.client = client(os.environ["AWS_LAMBDA_RUNTIME_API"])

    def end(self, *_):
        """SIGTERM, passed on to all processes."""
        self.ends = True
        for process in self.processes:
            if process:
                os.kill(process, signal.SIGTERM)

    def start(self, number):
        # A process that begins neither misses the signal nor passes it on.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        if not self.ends:
            self.does[number] = LOADS
            self.started[number] = time.monotonic()
            self.processes[number] = os.fork()
            if self.processes[number] == 0:
                os._exit(0) if self.is_trial else self.serve(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def serve(self, number):
        gc.enable()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        self.work.start(Slot(self.does, number))
        bootstrap.run(self.handler, self.client)
        os._exit(0)

    def try_out(self):
        """All that happens to a process, without a function."""
        self.is_trial = True
        self.start(0)
        self.ended()
        self.is_trial = False

    def to_start(self):
        """The number of the process to start next, at last in the place of one that has ended; None once
        none is left."""
        if self.begun[0] < len(self.processes):
            self.begun[0] += 1
            return self.begun[0] - 1
        while any(self.processes):
            number = self.ended()
            if number is not None:
                return number
        return None

    def ended(self):
        """Waits for the end of a process; returns its number if another is to take its place."""
        # One that has ended keeps its id until it is waited for, and then is not signalled.
        process = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
        _, status = os.waitpid(process, 0)
        if process not in self.processes:
            return None
        number = self.processes.index(process)
        self.processes[number] = 0
        if self.ends:
            return None
        did = self.does[number]
        self.report(number, status)
        lived = did == WAITS and time.monotonic() - self.started[number] > SOON_S
        return number if did == SERVES or lived else None

    def report(self, number, status):
        """Tells the worker how a process has ended, in a process of its own: that makes many objects."""
        reporter = os.fork()
        if reporter:
            os.waitpid(reporter, 0)
            return
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if not self.is_trial:
                report(self.work.address, number, status)
        finally:
            os._exit(0)


def run(work, handler, most):
    """Runs as many processes as requests at once, until none is left. Passes SIGTERM on to them."""
    processes = Processes(work, handler, most)
    signal.signal(signal.SIGTERM, processes.end)
    # A garbage collection writes to the objects that it visits, and processes share them until then.
    gc.disable()
    gc.collect()
    gc.freeze()
    processes.try_out()
    while (number := processes.to_start()) is not None:
        processes.start(number)
    sys.exit(not processes.ends)


def report(address, process, status):
    """Tells the worker how a process has ended."""
    body = str(status)
    head = ENDED % process + f"Content-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall((head + body).encode())
            connection.recv(1)
    except OSError as error:
        print(f"mayfly: the end of a process is not reported: {error}", file=sys.stderr, flush=True)
