"""Calls the function that the event names: {"do": NAME, ...}."""

import contextlib
import http.client
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time

import mayfly

print("loaded")
CALLS = []


def echo(event, context):
    client = context.client_context
    return {
        "event": event,
        "id": context.aws_request_id,
        "name": context.function_name,
        "arn": context.invoked_function_arn,
        "memory": context.memory_limit_in_mb,
        "left_ms": context.get_remaining_time_in_millis(),
        "custom": client.custom if client else None,
        "environment": dict(os.environ),
    }


def count(event, context):
    CALLS.append(context.aws_request_id)
    print("ran", context.aws_request_id)
    time.sleep(event.get("seconds", 0))
    return {"id": context.aws_request_id, "pid": os.getpid(), "calls": len(CALLS)}


def shell(event, context):
    done = subprocess.run(["sh", "-c", event["command"]], capture_output=True, text=True, timeout=100)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def fail(event, context):
    raise ValueError("as asked")


def leave(event, context):
    os._exit(event["code"])


def die(event, context):
    os.kill(os.getpid(), event["signal"])
    time.sleep(5)


def sleep(event, context):
    time.sleep(event["seconds"])
    return "slept"


def hang_up(event, context):
    """Closes the runtime's connections to the worker."""
    port = int(os.environ["AWS_LAMBDA_RUNTIME_API"].rpartition(":")[2])
    ended = 0
    for name in os.listdir("/proc/self/fd"):
        with (
            contextlib.suppress(OSError),
            socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as connection,
        ):
            if connection.getpeername()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


def large(event, context):
    return "x" * event["bytes"]


def now(event, context):
    """When the handler was called, on the clock that all processes share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


HELD = []


def hold(event, context):
    """Holds memory with equal contents in all instances: from malloc, and mapped by the function itself. It
    advises all of it, or the tables that the event names."""
    tables = [bytearray(event["mib"] << 20)]
    if "mapped_mib" in event:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        tables.append(mmap.mmap(-1, event["mapped_mib"] << 20, flags=flags))
    for table in tables:
        for at in range(0, len(table), 4096):
            table[at : at + 8] = (at + 1).to_bytes(8, "little")
    HELD.extend(tables)
    names = event.get("names", range(len(tables)))
    mayfly.advise([tables[number] for number in names], required=False)
    time.sleep(event["seconds"])


def check(event, context):
    """Whether held contents are unchanged. Then writes a page of its own, which no other instance may see."""
    right = all(
        int.from_bytes(table[at : at + 8], "little") == at + 1
        for table in HELD
        for at in range(4096, len(table), 4096)
    )
    for table in HELD:
        table[0:4096] = os.urandom(4096)
    time.sleep(0.3)
    return right


def drop(event, context):
    """Discards the contents of its mapped tables, and returns whether they read zero then."""
    dropped = [table for table in HELD if isinstance(table, mmap.mmap)]
    for table in dropped:
        table.madvise(mmap.MADV_DONTNEED)
    return bool(dropped) and not any(any(table[:]) for table in dropped)


def start_thread(event, context):
    """A thread that waits in a system call which writes to memory; for `seconds`, or for good."""
    ours, theirs = socket.socketpair()
    ours.settimeout(event.get("seconds"))
    HELD.append(theirs)
    threading.Thread(target=ours.recv, args=[10], daemon=True).start()


COUNT = {"count": 0, "longest_gap_s": 0.0}


def count_forever():
    last = time.monotonic()
    while True:
        time.sleep(0.001)
        now = time.monotonic()
        COUNT["count"] += 1
        COUNT["longest_gap_s"] = max(COUNT["longest_gap_s"], now - last)
        last = now


def start_counting(event, context):
    """A thread that counts, whether there is a request or not."""
    threading.Thread(target=count_forever, daemon=True).start()


def counted(event, context):
    time.sleep(event.get("seconds", 0))
    return COUNT


def asks_for_work():
    """Whether Lambda's client is in the call that asks for work; from Python 3.12 on in another thread."""
    names = [frame.f_code.co_name for frame in sys._current_frames().values()]
    return bool({"_get_next", "wait_next_invocation"} & set(names))


def report_rests():
    """Speaks the worker's own protocol, as the runtime does. The worker refuses the second of two that ask
    for work, upon which the runtime would end: so the runtime asks first."""
    while not asks_for_work():
        time.sleep(0.001)
    time.sleep(0.03)
    host, port = os.environ["AWS_LAMBDA_RUNTIME_API"].split(":")
    report = {"advised_bytes": 0, "shared_pages": 0, "trimmed_bytes": 0, "merges": False, "errno": 0, "ms": 1}
    while True:
        for method, path, body in [
            ("POST", "mayfly/rest", json.dumps(report)),
            ("GET", "invocation/next", None),
        ]:
            connection = http.client.HTTPConnection(host, int(port), timeout=1)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request(
                    method, f"/2018-06-01/runtime/{path}", body, {"Mayfly-Rests-After-Ms": "0,0,0,0"}
                )
                connection.getresponse().read()
            connection.close()


def rest_for_ever(event, context):
    threading.Thread(target=report_rests, daemon=True).start()


def fill_memory(event, context):
    held = []
    while True:
        held.append(b"x" * (8 << 20))


def fill_disk(event, context):
    with open("/tmp/full", "wb") as file:
        while True:
            file.write(b"x" * (1 << 20))


def fork_without_end(event, context):
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


def print_without_end(event, context):
    while True:
        print("x" * 1000)


def page(event, context):
    http = event["requestContext"]["http"]
    return {
        "statusCode": 201,
        "headers": {"Content-Type": "text/plain", "X-Path": event["rawPath"]},
        "cookies": ["a=1", "b=2"],
        "body": f"{http['method']} {event.get('queryStringParameters')} {event.get('body')}",
    }


def handler(event, context):
    if "requestContext" in event:
        return page(event, context)
    return globals()[event["do"]](event, context)
