"""Programs that do unusual things around merging (programs/unusual.c), and systems that lack something."""

import os
import shutil

import pytest
from error_cases import ask
from store import NOBODY, Puppet, Store, check

CASES = [
    "places",
    "closed files",
    "signals",
    "everything",
    "quiet once",
    "few files",
    "little address space",
    "small files",
    "first call",
]


def run(built, store, name, *words, prefix=(), user=None):
    """Runs it to its end; returns its last line."""
    done = built.run(store.socket, "unusual", name, *words, prefix=prefix, uid=user, timeout=90)
    said = (done.stdout.strip().splitlines() or [""])[-1]
    if said.startswith("skip: "):
        pytest.skip(said[6:])
    store.rested(name)
    print(said)
    return said


@pytest.mark.parametrize("case", CASES)
def test_unusual_program(built, store, case):
    run(built, store, case)


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_program_without_pie(built, store, binding):
    """The address of a function is a PLT entry of the program, which jumps to what the library redirects."""
    built.run(store.socket, "without_pie", flags=("-no-pie", "-fno-pic", f"-Wl,-z,{binding}"), timeout=30)
    store.rested("without_pie")


def test_same_pid(built, store):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    run(built, store, "same pid", prefix=("unshare", "--pid", "--fork"))


def test_threads(built):
    """Where only the userfaultfd for user mode is permitted."""
    user = NOBODY if os.geteuid() == 0 else None
    with Store(built, uid=user) as store:
        run(built, store, "threads", user=user)


def test_kept_from_children(built, store):
    said = run(built, store, "kept from children")
    check(said.startswith("0 of 2"), said)


def test_fork_without_store(store):
    """A child forked while no store runs works like its parent."""
    with Puppet(store) as puppet:
        puppet.block(1, 64, 1)
        store.kill()
        puppet.fork()
        puppet.do("check 1")
        puppet.ask("advise 1 0")
        puppet.do("check 1", "touch 1 3 9", "check 1")
        puppet.do("unadvise 1", "check 1")
        check(
            puppet.private_kib(1) == 256,
            f"after unadvise the child has {puppet.private_kib(1)} KiB of its own",
        )
        store.start()
        puppet.do("advise 1 0", "check 1")
        puppet.end()
        store.empty("after the child has ended")


def test_without_proc(store, built):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    number, line = ask(built, "plain", socket=store.socket, prefix=hide)
    check(number and "/proc" in line, f"errno {number}: {line!r}")
    print(line)
