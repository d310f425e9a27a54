"""Idle work of an instance: it returns its heap's free memory, and shares its pages."""

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import socket
import sys
import time

REST = (
    "POST /2018-06-01/runtime/mayfly/rest HTTP/1.1\r\nHost: runtime\r\nConnection: close\r\nContent-Length: "
)
# Merging copies a piece before it unmaps it: an instance with less memory left than this does not merge.
ROOM_BYTES = 32 << 20


class Range(ctypes.Structure):
    """struct Range of libmayfly_rest.so."""

    _fields_ = [("start", ctypes.c_size_t), ("size_bytes", ctypes.c_size_t)]


class Outcome(ctypes.Structure):
    """struct Rest of libmayfly_rest.so."""

    _fields_ = [
        ("advised_bytes", ctypes.c_uint64),
        ("shared_pages", ctypes.c_uint64),
        ("trimmed_bytes", ctypes.c_uint64),
        ("heap_live_bytes", ctypes.c_uint64),
        ("heap_held_bytes", ctypes.c_uint64),
        ("complete", ctypes.c_uint32),
        ("errno", ctypes.c_int32),
    ]


# A PyDLL call keeps the interpreter's lock, so that no other Python thread runs meanwhile.
library = ctypes.PyDLL(os.environ["MAYFLY_REST_LIBRARY"])


def rest(work, merges, freezes):
    """Rests until it is done or the descriptor `work` is readable, and returns its report for the worker."""
    began = time.monotonic()
    if freezes:
        # A garbage collection writes to every object that it visits: it skips the frozen ones.
        gc.collect()
        gc.freeze()
    outcome = Outcome()
    ranges = named()
    library.mayfly_rest(int(merges), work, ranges, len(ranges), ctypes.byref(outcome))
    report = {name: getattr(outcome, name) for name, _ in Outcome._fields_}
    return {**report, "merges": merges, "ms": (time.monotonic() - began) * 1000}


def before_snapshot():
    """Prepares the process to be taken as a snapshot."""
    gc.collect()
    gc.freeze()
    if error := library.mayfly_rest_before_snapshot():
        raise OSError(error, os.strerror(error))


@contextlib.contextmanager
def turn(place):
    """Whether this instance may merge now. One at a time of those that see the folder, or all are slower."""
    folder = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except BlockingIOError:
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(folder)


def report(address, outcome):
    """Reports a rest to the worker."""
    body = json.dumps(outcome)
    try:
        with socket.create_connection(address, timeout=1) as connection:
            connection.sendall(f"{REST}{len(body)}\r\n\r\n{body}".encode())
            connection.recv(1)
    except OSError:
        pass  # the worker only shows it


def named():
    """The regions that the function's code has named to be shared, by mayfly.advise and others."""
    naming = sys.modules.get("mayfly.naming")
    regions = naming.named if naming else []
    return (Range * len(regions))(*((start, end - start) for start, end in regions))


def own_bytes(process):
    """The memory of another process that no file has. What it shares counts by its part."""
    if process == str(os.getpid()):
        return 0
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon:"))
    except OSError:
        return 0  # it has ended, or is not the function's


def has_room():
    """Whether the instance has memory left to merge in, its processes and its files in /tmp counted."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    used += sum(map(own_bytes, filter(str.isdigit, os.listdir("/proc"))))
    files = os.statvfs("/tmp")
    used += (files.f_blocks - files.f_bfree) * files.f_frsize
    return used + ROOM_BYTES <= int(os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]) << 20
