"""Merging among well-behaved clients: pages are shared, each process keeps its own contents, and the store is
empty when all have ended."""

import contextlib
import os
import pathlib
import re
import signal
import time

import pytest
from store import NOBODY, Puppet, Store, check, until

PAGES = 512
# How long a client waits for another that uploads the same pages (merge/src/client/engine/upload.rs).
PATIENCE_S = 0.3


def store_files(puppet, number):
    """The files (device:inode) that a block's mappings belong to."""
    start, size = map(int, puppet.ask(f"where {number}").split())
    files = set()
    for line in pathlib.Path(f"/proc/{puppet.pid}/maps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-\S+ \S+ \S+ (\S+) (\d+)", line)
        if start <= int(found[1], 16) < start + size and int(found[3]):
            files.add((found[2], int(found[3])))
    return files


def test_two_processes(store):
    with Puppet(store) as one, Puppet(store) as two:
        one.block(1, PAGES, 1)
        two.block(1, PAGES, 1)
        check(
            two.stats()["merged"] == PAGES,
            f"the second process merged {two.stats()['merged']} of {PAGES} pages",
        )
        check(one.private_kib(1) <= 16, f"the first keeps {one.private_kib(1)} KiB to itself")
        check(two.private_kib(1) <= 16, f"the second keeps {two.private_kib(1)} KiB to itself")
        check(store_files(one, 1) & store_files(two, 1), "they do not map the same file")
        two.do("touch 1 7 99", "check 1")
        one.do("check 1")
        check(
            two.private_kib(1) in range(4, 21),
            f"after one write the second has {two.private_kib(1)} KiB of its own",
        )
        two.kill()
        one.do("check 1", "unadvise 1", "check 1")
        check(
            one.private_kib(1) == PAGES * 4,
            f"after unadvise the first has {one.private_kib(1)} KiB of its own",
        )
        one.end()
        store.empty("after both have ended")


def test_advised_again(store):
    """UPM V-B: unchanged pages are left alone, changed ones are merged anew."""
    with Puppet(store) as one, Puppet(store) as two:
        one.block(1, PAGES, 1)
        before = one.stats()
        one.do("advise 1 0")
        after = one.stats()
        check(after["unchanged"] - before["unchanged"] == PAGES, f"advised again: {after}")
        two.block(1, PAGES, 2)
        one.do("fill 1 2", "advise 1 0", "check 1")
        check(one.stats()["merged"] - after["merged"] == PAGES, f"after the change: {one.stats()}")
        check(one.private_kib(1) <= 16, f"it keeps {one.private_kib(1)} KiB to itself")
        until(lambda: store.metrics()["pages"] <= PAGES, "the replaced pages are dropped from the store")


def test_forks(store):
    """A child keeps its parent's pages, even after the parent has ended, and can merge by itself."""
    with Puppet(store) as one, Puppet(store) as other:
        one.block(1, PAGES, 1)
        one.fork()
        one.do(
            "check 1",
            "touch 1 3 9",
            "check 1",
            "advise 1 0",
            "check 1",
            "map 2 64",
            "fill 2 5",
            "advise 2 0",
            "check 2",
        )
        other.block(2, 64, 5)
        check(other.stats()["merged"] == 64, f"the child's upload is not found: {other.stats()}")
        one.do("unadvise 1", "check 1", "begin 2 0", "check 2")
        one.end()
        other.end()
        store.empty("after parent and child have ended")


def test_memory_that_a_fork_shares(store):
    """Advice makes it no larger, and takes a page once a process has it alone: it has written it, or the
    others have ended."""
    with Puppet(store) as one, Puppet(store) as other:
        one.do(f"map 1 {PAGES}", "fill 1 1")
        pids = [one.pid]
        for _ in range(3):
            one.fork()
            pids.append(one.pid)
            one.do("advise 1 0", "check 1")
        all_kib = one.block_kib(1, "Pss", pids) + 4 * store.metrics()["pages"]
        check(3 * PAGES < all_kib < 4 * PAGES + 64, f"four processes and the store have {all_kib} KiB")
        check(one.stats()["unchanged"] == PAGES, f"in the last: {one.stats()}")
        one.do("touch 1 7 99", "advise 1 0", "check 1")
        check(one.stats()["inserted"] == 1, f"after a write: {one.stats()}")
        one.process.kill()
        for pid in pids[1:-1]:
            os.kill(pid, signal.SIGKILL)

        def is_shared():
            one.do("advise 1 0")
            return one.stats()["inserted"] == PAGES

        until(is_shared, "what is the last one's alone is shared")
        one.do("check 1")
        other.block(1, PAGES, 1)
        check(other.stats()["merged"] == PAGES - 1, f"another program: {other.stats()}")


def test_crowd_of_50(store):
    """50 clients at once."""
    crowd = [Puppet(store) for _ in range(50)]
    try:
        for puppet in crowd:
            puppet.do(f"map 1 {PAGES}", "fill 1 1", "map 2 64", f"fill 2 {puppet.process.pid}")
        for puppet in crowd:
            puppet.send("advise 1 0")
        said = [puppet.answer(60) for puppet in crowd]
        check(set(said) == {"ok"}, f"they heard {sorted(set(said))}")
        for puppet in crowd:
            puppet.send("advise 2 0")
        said = [puppet.answer(60) for puppet in crowd]
        check(set(said) == {"ok"}, f"then they heard {sorted(set(said))}")
        own = [puppet.private_kib(1) for puppet in crowd]
        check(max(own) <= 64, f"they keep {min(own)} to {max(own)} KiB of {PAGES * 4} to themselves")
        for puppet in crowd:
            puppet.do("check 1", "check 2")
        pages = store.metrics()["pages"]
        check(PAGES <= pages <= PAGES + 50 * 64, f"the store holds {pages} pages")
        for puppet in crowd[::2]:
            puppet.kill()
        for puppet in crowd[1::2]:
            puppet.do("check 1", "check 2")
    finally:
        for puppet in crowd:
            puppet.end()
    store.empty("after the crowd has ended")


def test_users_apart(store):
    """One store serves two users, who share nothing with one another."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    with Puppet(store) as root, Puppet(store, uid=NOBODY) as other:
        root.block(1, PAGES, 1)
        other.block(1, PAGES, 1)
        check(other.stats()["inserted"] == PAGES, f"another user's pages were found: {other.stats()}")
        check(not store_files(root, 1) & store_files(other, 1), "two users map the same file")
        with Puppet(store, uid=NOBODY) as second:
            second.block(1, PAGES, 1)
            check(second.stats()["inserted"] == 0, f"the same user's pages were not found: {second.stats()}")


def test_everyone(built):
    """Users share with one another only if the operator sets --domain everyone."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    with (
        Store(built, "--domain", "everyone") as store,
        Puppet(store) as root,
        Puppet(store, uid=NOBODY) as other,
    ):
        root.block(1, PAGES, 1)
        other.do(f"map 1 {PAGES}", "fill 1 1", "advise 1 2", "check 1")
        check(other.stats()["inserted"] == 0, f"with --domain everyone: {other.stats()}")


def test_containers_apart(built):
    """With --domain cgroup, one user's programs in two cgroups share nothing."""
    folder = pathlib.Path("/sys/fs/cgroup/memory")
    if not folder.is_dir():
        folder = folder.parent
    if os.geteuid() != 0 or not os.access(folder / "cgroup.procs", os.W_OK):
        pytest.skip("needs root and cgroups")
    groups = [folder / f"mayfly-merge-{name}" for name in ("one", "two")]
    try:
        for group in groups:
            group.mkdir(exist_ok=True)
        with (
            Store(built, "--domain", "cgroup") as store,
            Puppet(store) as one,
            Puppet(store) as beside,
            Puppet(store) as apart,
        ):
            for puppet, group in ((one, groups[0]), (beside, groups[0]), (apart, groups[1])):
                (group / "cgroup.procs").write_text(str(puppet.pid))
                puppet.block(1, PAGES, 1)
            check(beside.stats()["inserted"] == 0, f"in the same cgroup: {beside.stats()}")
            check(apart.stats()["inserted"] == PAGES, f"in another cgroup: {apart.stats()}")
            check(not store_files(one, 1) & store_files(apart, 1), "two cgroups map the same file")
    finally:
        for group in groups:
            if group.exists():
                until(lambda group=group: (group / "cgroup.procs").read_text() == "", "a cgroup is empty")
                group.rmdir()


def test_at_once(store):
    """Of many clients with the same new pages at the same moment one uploads them, and the others wait for
    it."""
    pages, crowd = 2048, 6
    with contextlib.ExitStack() as stack:
        puppets = [stack.enter_context(Puppet(store)) for _ in range(crowd)]
        before, wrong = 0, []
        # They wait for a limited time: if the uploader gets no processor for so long, others upload, too.
        for block in range(1, 41):
            for puppet in puppets:
                puppet.do(f"map {block} {pages}", f"fill {block} {block * 100_000}")
            begun = time.monotonic()
            for puppet in puppets:
                puppet.send(f"advise {block} 0")
            for puppet in puppets:
                check((said := puppet.answer()) == "ok", said)
            all_were_patient = time.monotonic() - begun < PATIENCE_S
            for puppet in puppets:
                puppet.do(f"check {block}")
            total = sum(puppet.stats()["inserted"] for puppet in puppets)
            inserted, before = total - before, total
            if inserted <= 1.25 * pages:
                print(f"{inserted} uploaded for {pages}")
                break
            if all_were_patient:
                wrong.append(inserted)
            check(len(wrong) < 5, f"{wrong} pages were uploaded, {pages} exist")
            for puppet in puppets:
                puppet.do(f"unmap {block}")
        else:
            pytest.skip(f"{40 - len(wrong)} of 40 rounds took longer than a client waits for another")


def test_few_mappings(store):
    """Scattered pages that differ from process to process do not use up the mappings."""
    pages = 8192
    with contextlib.ExitStack() as stack:
        for n in range(4):
            puppet = stack.enter_context(Puppet(store))
            puppet.do(f"map 1 {pages}", "fill 1 5")
            before = int(puppet.ask("mappings"))
            for page in range(n, pages, 20):
                puppet.do(f"touch 1 {page} {n + 1}")
            puppet.do("advise 1 0", "advise 1 0")
            more = int(puppet.ask("mappings")) - before
            check(more <= pages / 8 + 40, f"process {n} has {more} mappings more for {pages} pages")
            own = puppet.private_kib(1)
            check(n == 0 or own < pages * 4 * 0.25, f"process {n} keeps {own} KiB to itself")
        print(f"{more} mappings, {own} KiB its own")
