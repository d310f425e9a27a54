"""Memory that the kernel has pinned for a device (programs/pinned.c) keeps what the device writes, and the
rest of it is shared."""

import os
import re
import shutil

import pytest
from store import BUILD, check

CASES = ["before", "before huge", "after", "during", "child lives", "child has ended", "forking", "reading"]
# Without UFFDIO_MOVE all of a batch in which a buffer lies stays private.
BY_DESCRIPTORS = ["after", "during", "child lives", "child has ended", "forking", "reading"]


def run(built, store, *words):
    """Runs it to its end; returns what it printed."""
    said = built.run(store.socket, "pinned", *words, timeout=110).stdout.strip()
    if said.startswith("skip: "):
        pytest.skip(said[6:])
    store.rested(words[0])
    return said


@pytest.mark.parametrize("case", CASES)
def test_pinned(built, store, case):
    run(built, store, case)


@pytest.mark.parametrize("case", BY_DESCRIPTORS)
def test_pinned_without_moving(built, store, case):
    """As on a kernel before Linux 6.8."""
    run(built, store, case, "hidden")


@pytest.mark.parametrize("kernel", ["", "hidden"])
def test_direct_reads_in_flight(built, store, kernel):
    path = BUILD / "direct-in-flight"
    path.write_bytes(b"B" * 4096)
    try:
        print(run(built, store, "direct", str(path), *filter(None, [kernel])))
    finally:
        path.unlink()


def test_refused_where_pins_cannot_be_known(built, store):
    """The line names the descriptor and what to do."""
    said = run(built, store, "refused")
    check(re.search(r"descriptor \d+ is a ring of io_uring.*MAYFLY_ADVISE_QUIET", said), said)
    check("\n" not in said and len(said) <= 300, f"not one clear line: {said!r}")


@pytest.mark.parametrize("when", ["before", "after"])
def test_packets_of_af_xdp(built, store, when):
    """The socket's memory is registered before or after the first call."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))):
        pytest.skip("needs root, unshare and ip")
    # Without IPv6 the devices send nothing by themselves.
    pair = (
        "sysctl -qw net.ipv6.conf.default.disable_ipv6=1; ip link add near type veth peer name far && "
        'ip link set far up && ip link set near up; exec "$@"'
    )
    prefix = ("unshare", "--net", "sh", "-c", pair, "sh")
    said = built.run(store.socket, "pinned_xdp", when, prefix=prefix).stdout.strip()
    if said.startswith("skip: "):
        pytest.skip(said[6:])
    store.rested("pinned_xdp")
