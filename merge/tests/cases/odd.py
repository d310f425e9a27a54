"""Programs that do unusual things around merging (programs/odd.c), and places where something is missing."""

import os
import shutil
import subprocess

from store import BUILD, NOBODY, Puppet, Skip, Store, as_user, check, status_text

from cases.errors import ask


def threads(built, options):
    """Where only the userfaultfd for user mode is permitted."""
    if os.geteuid() != 0:
        return program("threads")(built, options)
    with Store(built, uid=NOBODY) as store:
        done = subprocess.run(
            [built.program("odd"), "threads"],
            env=built.environment(store.socket),
            capture_output=True,
            text=True,
            timeout=90,
            **as_user(NOBODY),
        )
        check(done.returncode == 0, f"{status_text(done.returncode)}: {last_line(done.stderr)}")
        return last_line(done.stdout)


def last_line(text):
    return text.strip().splitlines()[-1] if text.strip() else ""


def program(name, *words, prefix=()):
    def test(built, options):
        if prefix and (os.geteuid() != 0 or not shutil.which(prefix[0])):
            raise Skip(f"needs root and {prefix[0]}")
        with Store(built) as store:
            done = subprocess.run(
                [*prefix, built.program("odd"), name, *words],
                env=built.environment(store.socket),
                capture_output=True,
                text=True,
                timeout=90,
            )
            check(done.returncode == 0, f"{status_text(done.returncode)}: {last_line(done.stderr)}")
            said = last_line(done.stdout)
            if said.startswith("skip: "):
                raise Skip(said[6:])
            store.alive(f"after `{name}`")
            store.empty(f"after `{name}`")
            return said

    return test


def excluded(said, *words):
    """What cannot be had must at least be said in the interface's manual."""
    text = (BUILD.parent.parent / "include/mayfly_merge.h").read_text()
    missing = [word for word in words if word not in text]
    check(said.startswith("0 of") or not missing, f"{said}, and mayfly_merge.h does not exclude {missing}")
    return said


def direct_reads(built, options):
    """Direct I/O pins pages, which nobody can hold off."""
    path = BUILD / "direct"
    path.write_bytes(b"B" * 4096)
    try:
        return excluded(program("direct", str(path))(built, options), "O_DIRECT")
    finally:
        path.unlink()


def kept_from_children(built, options):
    said = program("kept from children")(built, options)
    return excluded(said, "MADV_WIPEONFORK", "MADV_DONTFORK")


def fork_without_store(built, options):
    """A child that is born while the store is away is as good as its parent."""
    with Store(built) as store, Puppet(store) as puppet:
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
        store.empty("after the child has gone")


def without_proc(built, options):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        raise Skip("needs root and unshare")
    with Store(built) as store:
        hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
        number, line = ask(built, "plain", socket=store.socket, prefix=hide)
        check(number and "/proc" in line, f"errno {number}: {line!r}")
        return line


TESTS = {
    name: program(name)
    for name in (
        "places",
        "closed files",
        "signals",
        "everything",
        "quiet once",
        "few files",
        "little address space",
        "small files",
        "first call",
    )
} | {
    "same pid": program("same pid", prefix=("unshare", "--pid", "--fork")),
    "direct reads": direct_reads,
    "threads": threads,
    "kept from children": kept_from_children,
    "fork without store": fork_without_store,
    "without proc": without_proc,
}
