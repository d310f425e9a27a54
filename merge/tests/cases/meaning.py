"""What memory means after it was advised (programs/meaning.c), under every allocator that is installed:
zeros after MADV_DONTNEED, blocks that grow, calloc."""

import pathlib
import subprocess

from store import Skip, Store, check, status_text

SYSTEM = pathlib.Path("/usr/lib/x86_64-linux-gnu")
ALLOCATORS = {
    "glibc": None,
    "jemalloc": SYSTEM / "libjemalloc.so.2",
    "tcmalloc": SYSTEM / "libtcmalloc_minimal.so.4",
    "mimalloc": SYSTEM / "libmimalloc.so.2.0",
    "mayfly": "libmayfly_heap.so",
}
# Give back at once what is free: that is when MADV_DONTNEED is used.
AT_ONCE = {
    "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MIMALLOC_PURGE_DELAY": "0",
    "TCMALLOC_RELEASE_RATE": "100",
}


def run(built, case, preload=None):
    with Store(built) as store:
        more = AT_ONCE | ({"LD_PRELOAD": str(preload)} if preload else {})
        done = subprocess.run(
            [built.program("meaning"), case],
            env=built.environment(store.socket, **more),
            capture_output=True,
            text=True,
            timeout=120,
        )
        check(done.returncode == 0, f"{status_text(done.returncode)}: {done.stderr.strip()[-300:]}")
        store.alive(f"after `{case}`")
        store.empty(f"after `{case}`")
        return done.stdout.strip()


def meaning(case):
    return lambda built, options: run(built, case)


def allocator(name):
    def test(built, options):
        preload = ALLOCATORS[name]
        if isinstance(preload, str):
            preload = built.folder / preload
        if preload and not preload.exists():
            raise Skip(f"no {preload}")
        return run(built, "allocator", preload)

    return test


TESTS = {
    case: meaning(case) for case in ("dropping", "growing", "moving", "protecting", "forking", "files")
} | {f"under {name}": allocator(name) for name in ALLOCATORS}
