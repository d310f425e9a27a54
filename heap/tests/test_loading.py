"""How the heap gets into a program: preloaded beside another library, linked, where AT_SECURE holds."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from preloaded import build, libraries


@pytest.mark.parametrize("ours_first", [False, True], ids=["other-first", "heap-first"])
def test_preloads(heap, ours_first):
    [counting] = libraries("counting")
    preload = [heap.library, counting] if ours_first else [counting, heap.library]
    out, _ = heap.run([build("which_heap")], environment=heap.environment(*preload))
    counted = int(re.search(r"counted (\d+)", out)[1])
    assert ours_first or counted > 0, f"the other library saw no call: {out}"


@pytest.mark.parametrize("ours_first", [False, True], ids=["other-first", "heap-first"])
def test_survives_interposed_functions_that_allocate(heap, ours_first):
    """As libfaketime's do; they must not meet a lock that the heap holds."""
    [interposing] = libraries("interposing")
    preload = [heap.library, interposing] if ours_first else [interposing, heap.library]
    for command in (["date"], [sys.executable, "-c", THREADS], [build("few_sites")]):
        heap.run(command, 60, heap.environment(*preload))


THREADS = """import threading, time
ts = [threading.Thread(target=lambda: [bytearray(10**n) for n in range(7)]) for _ in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]; time.sleep(0.4); import os; os.getpid()"""


def test_preloads_before_main(heap):
    heap.run([build("before_main")], 30, heap.environment(*libraries("counting"), heap.library))


def test_linked(heap, tmp_path):
    if not heap.library:
        pytest.skip("needs a library")
    (tmp_path / "libheap_under_test.so").symlink_to(heap.library)
    flags = f"-L{tmp_path} -lheap_under_test -Wl,-rpath,{heap.library.parent}:{tmp_path} -Wl,--no-as-needed"
    out, _ = heap.run([build("which_heap", "-linked", *flags.split())], environment=heap.environment(None))
    origin = re.search("malloc from (.*)", out)[1]
    assert "heap_under_test" in out or Path(origin).resolve() == heap.library, f"malloc came from {origin}"


@pytest.fixture
def public(heap):
    """A folder that every user may look into, with a copy of the library."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "written").mkdir()
        (folder / "written").chmod(0o777)
        shutil.copy(heap.library, folder)
        (folder / heap.library.name).chmod(0o755)
        yield folder


def test_secure(heap, public):
    """A setgid program started by another user: the environment must not make it write files."""
    library, target, written = public / heap.library.name, public / "program", public / "written"
    linked = [library, f"-Wl,-rpath,{public}", "-Wl,--no-as-needed"]
    shutil.copy(build("which_heap", "-secure", *linked), target)
    files = {"MAYFLY_HEAP_TRACE": f"{written}/trace", "MAYFLY_HEAP_STATS": f"{written}/stats"}
    environment = heap.environment(None, MAYFLY_HEAP_SPANS="nonsense", **files)
    for mode, secure in ((0o755, False), (0o2755, True)):
        os.chown(target, 0, 60)  # the group `games`, not a group of the other user
        target.chmod(mode)
        as_other_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", target]
        out, err = heap.run(as_other_user, environment=environment)
        if f"secure {secure:d}" not in out:
            pytest.skip("the folder for temporary files does not honour setgid")
        found = sorted(file.name for file in written.iterdir())
        assert len(found) == (0 if secure else 2), f"AT_SECURE {secure}: it wrote {found}"
        assert err == "" if secure else "mayfly-heap:" in err, f"AT_SECURE {secure}: it logged {err}"
        for file in written.iterdir():
            file.unlink()
