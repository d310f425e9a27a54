"""What cannot be merged is refused with one clear line that says what to do, and the contents stay right."""

import errno
import os
import pathlib
import re
import subprocess

from store import NOBODY, Skip, Store, as_user, check, status_text

# Case -> errno (or several), and what the line must say. The cases are those of programs/errors.c.
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
    "one_of_many": (errno.ENOTSUP, r"shared"),
    "huge": (errno.ENOTSUP, r"huge"),
    "wait": (errno.EINVAL, r"ticket"),
    "unadvise_address": (errno.EINVAL, r"aligned|multiple"),
    "unadvise_unmapped": (errno.ENOMEM, r"not mapped|nothing is mapped"),
}


def ask(built, name, *words, uid=None, socket="/nonexistent/socket", env=None, want=None, prefix=()):
    """Runs programs/errors.c for one case; checks errno and line; returns the line."""
    program = built.program("errors")
    done = subprocess.run(
        [*prefix, program, name, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=built.environment(socket, **(env or {})),
        **as_user(uid),
    )
    check(done.returncode == 0, f"{name}: {status_text(done.returncode)}: {done.stderr.strip()[-300:]}")
    check(not done.stderr, f"{name}: the library writes to stderr: {done.stderr[:200]!r}")
    number, _, line = done.stdout.rstrip("\n").partition("\t")
    if number == "skip":
        return None
    number = int(number)
    if want is None:
        return number, line
    numbers, pattern = want
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    check(number in numbers, f"{name}: errno {errno.errorcode.get(number, number)}: {line!r}")
    if number:
        check("\n" not in line and 10 <= len(line) <= 300, f"{name}: not one clear line: {line!r}")
        check(re.search(pattern, line, re.I), f"{name}: does not say /{pattern}/: {line!r}")
    return number, line


def refused(built, options):
    with Store(built) as store:
        skipped = [
            name for name, want in REFUSED.items() if ask(built, name, socket=store.socket, want=want) is None
        ]
    return f"not here: {', '.join(skipped)}" if skipped else ""


def odd_memory(built, options):
    """Memory that may be merged or refused, but must neither hang nor crash."""
    with Store(built) as store:
        said = {}
        for name in ("thread_stack", "vdso", "past_end"):
            number, line = ask(built, name, socket=store.socket)
            check(number in (0, errno.ENOTSUP, errno.ENOMEM, errno.EPERM), f"{name}: errno {number}: {line}")
            said[name] = errno.errorcode.get(number, "merged")
        return ", ".join(f"{name} {outcome}" for name, outcome in said.items())


def no_store(built, options):
    want = (errno.ECONNREFUSED, r"mayfly share")
    with Store(built) as store:
        for socket in ("/nonexistent/socket", store.folder, store.folder / "log", "/" + "x" * 200, ""):
            ask(
                built,
                "plain",
                socket=socket,
                want=((errno.ECONNREFUSED, errno.EINVAL, errno.ENAMETOOLONG), r"mayfly share|socket|path"),
            )
        store.kill()
        ask(built, "plain", socket=store.socket, want=want)


def no_permission(built, options):
    """userfaultfd as a user who may not: vm.unprivileged_userfaultfd=0 and no access to /dev/userfaultfd."""
    setting = pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd")
    device = pathlib.Path("/dev/userfaultfd")
    if os.geteuid() != 0:
        raise Skip("needs root, to become another user")
    if setting.read_text().strip() != "0" or (device.exists() and device.stat().st_mode & 0o006):
        raise Skip("here everybody may use userfaultfd")
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
        # Alone, a process that is busy advising writes nothing.
        number, line = ask(built, "plain", **where)
        check(number in (0, errno.EPERM), f"alone: {line}")


TESTS = {"refused": refused, "odd memory": odd_memory, "no store": no_store, "no permission": no_permission}
