"""Memory that cannot be merged is refused with one clear line that names the remedy, and the contents stay
right."""

import errno
import os
import pathlib
import signal
import time

import pytest
from error_cases import ask
from store import NOBODY, Store, check

# Case -> errno (or several), and a pattern for the line. The cases are those of programs/errors.c.
REFUSED = {
    "address": (errno.EINVAL, r"aligned|multiple"),
    "length": (errno.EINVAL, r"aligned|multiple"),
    "flag": (errno.EINVAL, r"flag.*0x4000|0x4000.*flag"),
    "unmapped": (errno.ENOMEM, r"not mapped|nothing is mapped"),
    "hole": (errno.ENOMEM, r"not mapped|nothing is mapped"),
    "wraps": ((errno.ENOMEM, errno.EINVAL), r"."),
    "null": (errno.ENOMEM, r"mapped|no such"),
    "kernel": ((errno.ENOMEM, errno.EINVAL), r"."),
    "stack": (errno.ENOTSUP, r"stack"),
    "vvar": (errno.ENOTSUP, r"device|vvar|kernel"),
    "device": (errno.ENOTSUP, r"device"),
    "shared": (errno.ENOTSUP, r"shared"),
    "shared_file": (errno.ENOTSUP, r"shared"),
    "writable_file": (errno.ENOTSUP, r"file.*QUIET|QUIET.*file"),
    "locked": (errno.ENOTSUP, r"lock"),
    "unreadable": (errno.ENOTSUP, r"read"),
    "sealed": (errno.ENOTSUP, r"seal"),
    "droppable": (errno.ENOTSUP, r"MAP_DROPPABLE"),
    "one_of_many": (errno.ENOTSUP, r"shared"),
    "huge": (errno.ENOTSUP, r"huge"),
    "wait": (errno.EINVAL, r"ticket"),
    "unadvise_address": (errno.EINVAL, r"aligned|multiple"),
    "unadvise_unmapped": (errno.ENOMEM, r"not mapped|nothing is mapped"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(store, built, case):
    ask(built, case, socket=store.socket, want=REFUSED[case])


def test_odd_memory(store, built):
    """Memory that may be merged or refused, but must neither hang nor crash."""
    said = {}
    for name in ("thread_stack", "vdso", "past_end"):
        number, line = ask(built, name, socket=store.socket)
        check(number in (0, errno.ENOTSUP, errno.ENOMEM, errno.EPERM), f"{name}: errno {number}: {line}")
        said[name] = errno.errorcode.get(number, "merged")
    print(", ".join(f"{name} {outcome}" for name, outcome in said.items()))


@pytest.mark.parametrize("how", ["", "forks", "closes"])
def test_process_that_changes_its_user(store, built, how):
    """As workers of a server that root starts: /proc/self/pagemap is root's from then on."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    late = (errno.EACCES, r"changed its user.*gunicorn.conf.py.*PR_SET_DUMPABLE")
    ask(
        built,
        "changed user",
        *filter(None, [how]),
        socket=store.socket,
        want=late if how == "closes" else (0, ""),
    )


def test_no_store(store, built):
    want = (errno.ECONNREFUSED, r"mayfly share")
    for socket in ("/nonexistent/socket", store.folder, store.folder / "log", "/" + "x" * 200, ""):
        ask(
            built,
            "plain",
            socket=socket,
            want=((errno.ECONNREFUSED, errno.EINVAL, errno.ENAMETOOLONG), r"mayfly share|socket|path"),
        )
    store.kill()
    ask(built, "plain", socket=store.socket, want=want)


def test_stopped_store(store, built):
    """A call does not wait for its answer as long as for a busy one's, 20 s."""
    store.process.send_signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        ask(built, "plain", socket=store.socket, want=(errno.ETIMEDOUT, rf"stopped.*kill -CONT {store.pid}"))
        check(time.monotonic() - begun < 15, f"it took {time.monotonic() - begun:.1f} s")
    finally:
        store.process.send_signal(signal.SIGCONT)
    ask(built, "plain", socket=store.socket, want=(0, ""))


def test_no_permission(built):
    """userfaultfd without permission: vm.unprivileged_userfaultfd=0 and no access to /dev/userfaultfd."""
    setting = pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd")
    device = pathlib.Path("/dev/userfaultfd")
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    if setting.read_text().strip() != "0" or (device.exists() and device.stat().st_mode & 0o006):
        pytest.skip("all users may use userfaultfd here")
    with Store(built, uid=NOBODY) as store:
        where = {"uid": NOBODY, "socket": store.socket}
        ask(
            built,
            "plain",
            "threads",
            **where,
            want=(errno.EPERM, r"userfaultfd.*(NO_SYSCALLS|QUIET|sysctl|/dev/userfaultfd)"),
        )
        ask(built, "no_system_calls", "threads", **where, want=(0, ""))
        ask(built, "quiet", "threads", **where, want=(0, ""))
        # The only thread of a process is advising, and writes nothing.
        number, line = ask(built, "plain", **where)
        check(number in (0, errno.EPERM), f"alone: {line}")
