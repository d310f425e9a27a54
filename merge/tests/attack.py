"""The frame of every attack on the store: an innocent client, which must not be disturbed, and a check of the
files that the store has left open."""

import contextlib
import os
import pickle
import time
import traceback

from store import Failed, Puppet, Store, check, until

PAGES = 64


def as_user(uid, work):
    """Runs work() in a process of another user; returns what it returns, raises what it raises."""
    if uid is None or os.geteuid() != 0:
        return work()
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mine)
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            # It may act on other processes of its uid; being traced again is for those tests, too.
            outcome = (True, work())
        except Failed as reason:
            outcome = (False, str(reason))
        except BaseException:
            outcome = (False, traceback.format_exc(limit=-3))
        with os.fdopen(theirs, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(mine, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    check(data, "an attacker died")
    right, value = pickle.loads(data)
    check(right, value)
    return value


@contextlib.contextmanager
def attacked(built, *arguments, grown_kib=16384, files=48, **environment):
    """A store with an innocent client of root's; afterwards neither may show any effect."""
    with Store(built, *arguments, **environment) as store, Puppet(store) as witness:
        witness.block(1, PAGES, 1)
        opened, resident = store.files(), store.resident_kib()
        yield store, witness
        undisturbed(store, witness)
        until(
            lambda: store.files() <= opened + files, f"the store had {opened} files open, has {store.files()}"
        )
        check(
            store.resident_kib() < resident + grown_kib,
            f"the store grew from {resident} to {store.resident_kib()} KiB",
        )
        witness.end()
        store.empty("after an attack")


def undisturbed(store, witness, seconds=10.0):
    """Allows for slow machines: a store that waits for an attacker does so for 20 s or more."""
    store.alive("during an attack")
    start = time.monotonic()
    witness.do("check 1", "map 9 64", f"fill 9 {int(start * 1000)}", "advise 9 0", "check 9", "unmap 9")
    took = time.monotonic() - start
    check(took < seconds, f"an innocent client had to wait for {took:.1f} s")
