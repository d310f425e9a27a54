"""Programs that the store cannot serve read why in one line, and go on with memory of their own. Above all
where the store may open no more files: it serves the others, and all again once files come free."""

import os
import re
import resource
import select

import pytest
from attack import PAGES
from store import NOBODY, Puppet, Store, check, until
from wire import ATTACHED, EXHAUSTED, REFUSED, WRONG, Wire, words

LINE = r"the page store \(process \d+\) has all \d+ files open.*LimitNOFILE"


def limit(process, most):
    """The soft limit of its open files; returns the former one."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (min(most, hard), hard))[0]


def refused(said, pattern=LINE):
    check(said.startswith("24 ") and re.search(pattern, said), f"not the right line: {said!r}")


def test_offer_to_a_store_without_descriptors(store):
    with Puppet(store) as uploader, Puppet(store) as other:
        for client in (uploader, other):
            client.block(1, PAGES, 1)
        most = limit(store, 3)
        uploader.do("map 2 64", "fill 2 2")
        refused(uploader.ask("advise 2 0"))
        uploader.do("check 1", "check 2")
        # For pages of a segment that it has, a client needs no descriptor of the store.
        before = other.stats()["merged"]
        other.block(2, PAGES, 1)
        other.do("check 1", "check 2")
        check(other.stats()["merged"] == before + PAGES, f"another client shares nothing: {other.stats()}")
        limit(store, most)
        uploader.do("advise 2 0", "check 2")
        other.block(3, PAGES, 2)
        check(other.stats()["merged"] == before + 2 * PAGES, f"it has not recovered: {other.stats()}")


def test_segment_of_a_store_without_descriptors(store):
    """It exists: the client must not upload its pages a second time."""
    with Puppet(store) as uploader, Wire(store) as wire:
        uploader.block(1, PAGES, 1)
        most = limit(store, 3)
        kind, body = wire.attach(1)
        check(kind == REFUSED and body[:4] == words(EXHAUSTED), f"{kind} {body!r}")
        limit(store, most)
        kind, body = wire.attach(1)
        check(kind == ATTACHED, f"after descriptors came free: {kind} {body!r}")


def test_connections_to_a_store_without_descriptors(store):
    """The daemon has one descriptor in reserve, by which it answers those that it cannot serve."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to count the store's descriptors")
    with Puppet(store) as early:
        early.block(1, PAGES, 1)
        most = limit(store, max(map(int, os.listdir(f"/proc/{store.pid}/fd"))) + 6)
        idle = [Wire(store, hello=False) for _ in range(64)]
        try:
            sockets = {wire.socket: wire for wire in idle}
            answered = until(lambda: select.select(sockets, [], [], 0)[0], "a connection is answered")
            kind, body = sockets[answered[0]].receive()
            check(kind == REFUSED and re.search(LINE, body[4:].decode()), f"{kind} {body!r}")
            with Puppet(store) as late:
                late.do("map 1 64", "fill 1 1")
                refused(late.ask("advise 1 0"))
                late.do("check 1")
                early.do("advise 1 0", "check 1")
                for wire in idle:
                    wire.close()
                until(lambda: late.ask("advise 1 0") == "ok", "the store serves it again")
                late.do("check 1")
                check(late.stats()["merged"] == PAGES, f"{late.stats()}")
        finally:
            for wire in idle:
                wire.close()
        limit(store, most)


def test_client_without_descriptors(store):
    """Its own limit, not the store's, is in the line."""
    with Puppet(store) as uploader, Puppet(store) as client:
        uploader.block(1, PAGES, 1)
        client.block(9, PAGES, 9)
        most = limit(client, 3)
        client.do("map 1 64", "fill 1 1")
        refused(client.ask("advise 1 0"), r"Too many open files|ulimit -n")
        limit(client, most)
        client.do("check 1", "advise 1 0", "check 1")


def test_too_many_connections(built):
    with Store(built, "--clients", "2") as store, Wire(store), Wire(store), Puppet(store) as third:
        third.do("map 1 64", "fill 1 1")
        refused(third.ask("advise 1 0"), r"2 connections")
        third.do("check 1")


def test_process_of_another_user(built):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    with Store(built, uid=NOBODY) as store, Wire(store, hello=False) as wire:
        kind, body = wire.receive()
        check(kind == REFUSED and body[:4] == words(WRONG), f"{kind} {body!r}")
        check(re.search(r"uid 0, not of this user", body[4:].decode()), f"{body!r}")
