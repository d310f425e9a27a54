"""advise and unadvise on the real store: two programs with the same contents share them, and their contents
stay right."""

import contextlib
import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import mayfly
import numpy
import pytest
from mayfly.regions import regions_of

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

PROGRAM = """
import hashlib, sys
import numpy, mayfly

def digest(array):
    return hashlib.sha256(array).digest()   # without a copy, which would show as memory of the program

data = numpy.random.default_rng(7).random(2 << 20)        # 16 MiB, the same in every program
own = numpy.full(1 << 17, int(sys.argv[1]), dtype="f8")   # 1 MiB
as_made = digest(data)
kept = data[1000:3000].copy()
data[1000:3000] = -1
as_written = digest(data)
data[1000:3000] = kept
size = mayfly.advise({"weights": data, "more": [own]})
assert 16 << 20 < size + 8192 and size <= 17 << 20, size
assert digest(data) == as_made and (own == int(sys.argv[1])).all()
print(mayfly.path(), mayfly.stats()["merged_pages"], flush=True)
want = as_made
for line in sys.stdin:
    step = line.strip()
    if step == "write":
        data[1000:3000] = -1
        want = as_written
    if step == "unadvise":
        mayfly.unadvise(data)
    print(digest(data) == want, flush=True)
"""


@contextlib.contextmanager
def program(store, number):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(number)],
        env=os.environ | store | {"PYTHONPATH": str(ROOT / "python")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def step(process, name):
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def anonymous_mib(process):
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return int(text.split("Anonymous:")[1].split()[0]) / 1024


def test_programs_share_equal_pages(store):
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(program(store, 1))
        assert one.stdout.readline().split()[0] == "engine"
        two = stack.enter_context(program(store, 2))  # only now: two at once would both upload
        path, merged = two.stdout.readline().split()
        assert path == "engine" and int(merged) >= 4000
        idle = [anonymous_mib(process) for process in (one, two)]
        assert step(one, "check") == step(two, "check") == "True"
        assert step(one, "write") == "True"
        assert step(two, "check") == "True"  # it does not see the other's writes
        assert step(two, "unadvise") == "True"
        assert step(one, "check") == "True"
        assert anonymous_mib(two) > idle[1] + 15
        assert anonymous_mib(one) < idle[0] + 3


def run(code, store):
    return subprocess.run(
        [sys.executable, "-c", "import mayfly, numpy\n" + code],
        env=os.environ | store | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_in_the_background(store):
    ran = run(
        """
data = numpy.random.default_rng(9).random(1 << 20)
copy = data.copy()
pending = mayfly.advise(data, background=True)
assert pending.wait(30) == pending.wait() > 8000000
assert pending.done() and (data == copy).all()
pending = mayfly.advise(numpy.ones(1 << 20), background=True)
del pending   # waits: the array must outlive the merging
""",
        store,
    )
    assert ran.returncode == 0, ran.stderr


def test_a_child_that_is_forked_during_the_first_call(store):
    ran = run(
        """
import os, threading
much = numpy.ones(32 << 20)  # so that the fork takes a while
data = [numpy.random.default_rng(13).random(1 << 20) for _ in range(2)]
begins = threading.Event()
first = threading.Thread(target=lambda: begins.set() or mayfly.advise(data[0]))
first.start()
begins.wait()
child = os.fork()
if child == 0:
    mayfly.advise(data[1])
    os._exit(not (data[0] == data[1]).all())
assert os.waitpid(child, 0)[1] == 0
first.join()
assert (data[0] == data[1]).all()
""",
        store,
    )
    assert ran.returncode == 0, ran.stderr


def test_advising_shares_memory_allocated_in_the_block(store):
    ran = run(
        """
with mayfly.advising() as shared:
    data = numpy.random.default_rng(11).random(1 << 20)
copy = numpy.random.default_rng(11).random(1 << 20)
(where,) = mayfly.regions.regions_of(data)
both = [min(where.end, region.end) - max(where.start, region.start) for region in shared]
assert max(both) > 8000000, (where, shared)
assert (data == copy).all()
assert mayfly.stats()["inserted_pages"] >= 2000
""",
        store,
    )
    assert ran.returncode == 0, ran.stderr


THREADS = """
import threading, mayfly
end = threading.Event()
with mayfly.advising() as shared:
    weights = bytearray(b"".join(n.to_bytes(8, "little") * 512 for n in range(4096)))
    threads = [threading.Thread(target=end.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
assert 16 << 20 <= sum(region.size_bytes for region in shared), shared
with mayfly.advising() as nothing:
    threads.append(threading.Thread(target=end.wait))
    threads[-1].start()
assert weights == b"".join(n.to_bytes(8, "little") * 512 for n in range(4096))
end.set()
print(mayfly.stats()["merged_pages"] + mayfly.stats()["inserted_pages"])
"""


def test_threads_that_start_in_the_block_are_left_out(store):
    """As libraries start their pools, ONNX Runtime among them."""
    ran = subprocess.run(
        [sys.executable, "-c", THREADS],
        env=os.environ | store | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= 4000


WORKERS = """
import os, sys
import mayfly
for _ in range(2):
    if not (child := os.fork()):
        os.setgid(65534)
        os.setuid(65534)
        weights = bytearray(b"".join(n.to_bytes(8, "little") * 512 for n in range(4096)))
        mayfly.advise(weights)
        print(mayfly.stats()["merged_pages"] + mayfly.stats()["inserted_pages"], flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_workers_that_change_their_user_share(store):
    """As gunicorn's with --user: mayfly is imported by gunicorn.conf.py, before."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    Path(store["MAYFLY_SHARE_SOCKET"]).parent.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", WORKERS],
        env=os.environ | store | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    assert [int(pages) > 4000 for pages in ran.stdout.split()] == [True, True], ran.stdout


FORKED = """
import json, os, sys
import numpy, mayfly
mayfly.path()
data = {"weights": numpy.random.default_rng(5).random(4 << 20)}  # 32 MiB
sums = data["weights"].sum()
def pss_kib(pids):
    texts = [open(f"/proc/{pid}/smaps_rollup").read() for pid in pids]
    return sum(int(text.split("Pss:")[1].split()[0]) for text in texts)
if sys.argv[1] == "before":
    data = mayfly.pack(data)
    mayfly.advise(data)
workers = []
for _ in range(4):
    (go, gone), (said, saying) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.read(go, 1)
        data = mayfly.pack(data)
        mayfly.advise(data)
        os.write(saying, b"x" if data["weights"].sum() == sums else b"-")
        os.read(go, 1)
        os._exit(0)
    workers.append((child, gone, said))
pids = [os.getpid(), *(child for child, _, _ in workers)]
before = pss_kib(pids)
right = []
for _, gone, said in workers:
    os.write(gone, b"x")
    right.append(os.read(said, 1) == b"x")
print(json.dumps([all(right), before, pss_kib(pids), mayfly.stats()["inserted_pages"]]))
for child, gone, _ in workers:
    os.write(gone, b"x")
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("when", ["after", "before"])
def test_forked_workers_become_no_larger(store, when):
    """They pack and advise what their parent has loaded, and packed and advised before it forked, or not."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKED, when],
        env=os.environ | store | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    right, before, after, inserted = json.loads(ran.stdout)
    assert right and after < before + (16 << 10), (before, after)  # another copy would be 32 MiB
    assert (inserted > 8000) == (when == "before")


def test_pack_in_a_forked_process_leaves_shared_memory():
    data = numpy.random.default_rng(5).random(1 << 18)
    assert mayfly.pack([data])[0] is not data
    if not (child := os.fork()):
        kept = mayfly.pack([data])[0] is data
        data[:] += 1  # its own now
        moved = mayfly.pack([data])[0]
        os._exit(not (kept and moved is not data and (moved == data).all()))
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_to_share_is_no_error(store):
    ran = run("print(mayfly.advise(b'small'), mayfly.advise([]), mayfly.unadvise(numpy.zeros(3)))", store)
    assert ran.stdout == "0 0 0\n", ran.stderr


def test_without_a_store_the_error_names_the_command(tmp_path):
    nowhere = {"MAYFLY_SHARE_SOCKET": str(tmp_path / "none.sock"), "MAYFLY_MERGE_PATH": "engine"}
    ran = run(
        """
try:
    mayfly.advise(numpy.ones(100000))
except mayfly.MergeError as error:
    print(error.errno, error)
""",
        nowhere,
    )
    assert ran.returncode == 0, ran.stderr
    number, text = ran.stdout.split(maxsplit=1)
    assert int(number) == errno.ECONNREFUSED
    assert "mayfly share" in text and text.count("\n") == 1


def test_a_server_starts_without_a_store(tmp_path):
    nowhere = {"MAYFLY_SHARE_SOCKET": str(tmp_path / "none.sock"), "MAYFLY_MERGE_PATH": "engine"}
    ran = run(
        """
data = numpy.ones(100000)
print(mayfly.advise(data, required=False), mayfly.advise(data, required=False, background=True).wait())
print(mayfly.advise_process(required=False))
with mayfly.advising(required=False) as shared:
    more = numpy.ones(1 << 20)
print(shared, data.sum() + more.sum())
""",
        nowhere,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"0 0\n0\n[] {100000.0 + (1 << 20)}\n"
    assert "mayfly share" in ran.stderr and ran.stderr.count("\n") == 1  # reported once


def test_after_all_of_a_process_was_advised_its_memory_grows_and_is_zero(store):
    ran = run(
        """
import random
blocks = [bytearray(random.Random(n).randbytes((3000 + 1500 * n) << 10)) for n in range(4)]
kept = [bytes(block) for block in blocks]
mayfly.advise_process()
for block, was in zip(blocks, kept, strict=True):
    block.extend(bytes(40 << 20))
    assert block[: len(was)] == was and block.count(0, len(was)) == 40 << 20
array = numpy.random.default_rng(1).random(1 << 20)
mayfly.advise(array)
array.resize(1 << 21, refcheck=False)
assert not array[1 << 20 :].any() and array[: 1 << 20].all()
""",
        store,
    )
    assert ran.returncode == 0, ran.stderr


def test_huge_pages_stay_where_all_of_them_is_equal(store):
    code = """
import mmap, re, sys
memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
data = numpy.frombuffer(memory, dtype="f8")
data[:] = numpy.random.default_rng(5).random(4 << 20)
mayfly.advise(data)
assert (data == numpy.random.default_rng(5).random(4 << 20)).all()
huge = re.search(r"ShmemPmdMapped: *([0-9]+)", open("/proc/self/smaps_rollup").read())
print(huge[1], data.ctypes.data % (2 << 20), flush=True)
sys.stdin.read(int(sys.argv[1]))
"""
    command = [sys.executable, "-c", "import mayfly, numpy\n" + code]
    environment = os.environ | store | {"PYTHONPATH": str(ROOT / "python")}
    with subprocess.Popen(
        [*command, "1"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        huge, place = map(int, first.stdout.readline().split())
        second = subprocess.run(
            [*command, "0"], env=environment, input="", capture_output=True, text=True, timeout=120
        )
        first.communicate("x")
    assert second.returncode == 0, second.stderr
    if not huge:
        pytest.skip("the system gave no huge pages for shared memory")
    if place != int(second.stdout.split()[1]):
        pytest.skip("this kernel does not align mappings for huge pages")
    # A page that is huge in one process is huge in the other, which may advise it while it is being split.
    assert int(second.stdout.split()[0]) >= huge // 2


def test_regions_here_are_real():
    data = numpy.ones(100000)
    (where,) = regions_of(data)
    assert where.size_bytes == data.nbytes


def test_all_of_a_process(store):
    ran = run(
        """
data = numpy.random.default_rng(12).random(1 << 20)
copy = data.copy()
assert mayfly.advise_process() > 16000000
assert (data == copy).all() and (numpy.random.default_rng(12).random(1 << 20) == copy).all()
stats = mayfly.stats()
assert stats["inserted_pages"] + stats["merged_pages"] > 2000
""",
        store,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its instructions are x86-64's")
def test_process_with_code_that_empties_memory_by_itself_is_refused(store, tmp_path):
    source, library = tmp_path / "own.c", tmp_path / "libown.so"
    source.write_text("""
long empties(void *at, long bytes) {
    long result;
    __asm__ volatile("movl $28, %%eax; syscall"
                     : "=a"(result) : "D"(at), "S"(bytes), "d"(4L) : "rcx", "r11", "memory");
    return result;
}
""")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    ran = run(
        f"""
import ctypes
own = ctypes.CDLL({str(library)!r})
assert mayfly.advise_process(required=False) == 0
try:
    mayfly.advise_process()
except mayfly.MergeError as error:
    print(error.errno, error)
# What is named is the program's own.
print(mayfly.advise(numpy.random.default_rng(3).random(1 << 20)))
""",
        store,
    )
    assert ran.returncode == 0, ran.stderr
    refusal, advised = ran.stdout.splitlines()
    assert refusal.startswith(f"{errno.ENOTSUP} ") and f"{library} empties memory" in refusal
    assert int(advised) > 8_000_000
    assert ran.stderr.count("\n") == 1 and f"nothing is shared: {library} empties memory" in ran.stderr
