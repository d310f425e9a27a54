"""Programs under the auto library, on the real store."""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))
from bench.merge.machine import LIBRARY  # noqa: E402
from bench.merge.store import running  # noqa: E402

AUTO = Path(os.environ.get("MAYFLY_MERGE_AUTO_LIBRARY") or ROOT / "target/release/libmayfly_merge_auto.so")
SIZE_MIB = 24
ALLOCATED_MIB = 3 * SIZE_MIB + 4


def compiled(name, folder):
    command = ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread"]
    subprocess.run([*command, "-o", folder / name, HERE / f"{name}.c"], check=True)
    return folder / name


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled("allocate", tmp_path_factory.mktemp("built"))


@pytest.fixture
def store():
    if not AUTO.exists():
        pytest.fail(f"{AUTO} is not built: run 'make build'")
    with running() as started:
        yield started.environment()


PRELOAD = {"LD_PRELOAD": str(AUTO), "MAYFLY_MERGE_LIBRARY": str(LIBRARY)}


@contextlib.contextmanager
def running_under(words, environment, auto="1M", **more):
    """A process with the library preloaded, and pipes to it. It ends with the block, if it has not."""
    process = subprocess.Popen(
        words,
        env=os.environ | environment | PRELOAD | {"MAYFLY_MERGE_AUTO": auto} | more,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def at_rest(process):
    assert process.stdout.readline() == "at rest\n", process.stderr.read()
    return process


@contextlib.contextmanager
def started(program, environment, **more):
    with running_under([program, str(SIZE_MIB)], environment, **more) as process:
        yield at_rest(process)


def until(condition, seen, seconds=60):
    """Waits for a condition. If it never holds, the test fails with what `seen` returns then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.1)


def until_smaller(processes, mib, seconds=60):
    """Waits until each process has less anonymous memory than that."""

    def sizes():
        return [anonymous_mib(process) for process in processes]

    until(lambda: max(sizes()) <= mib, sizes, seconds)


def anonymous_mib(process):
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return int(text.split("Anonymous:")[1].split()[0]) / 1024


def finish(process):
    said, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0, errors
    assert said == "done\n"
    return errors


def test_shares_unchanging_blocks_and_keeps_their_contents(program, store):
    with started(program, store) as one, started(program, store) as other:
        until_smaller([one, other], 0.2 * ALLOCATED_MIB)
        assert [finish(one), finish(other)] == ["", ""]


@pytest.mark.parametrize("then", ["idle", "busy"])
def test_freed_buffers_are_taken_again_and_unmapped_at_rest(store, tmp_path, then):
    """What glibc's heap does for buffers that a program frees and allocates all the time. A hundred rounds
    of 9 MiB would have 230,400 page faults."""
    with running_under([compiled("reuse", tmp_path), then], store) as process:
        faults = process.stdout.readline()
        assert faults, process.stderr.read()
        assert int(faults) < 230400 / 4
        at_rest(process)
        until_smaller([process], 2 if then == "idle" else 3)
        assert finish(process) == ""


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_fork_during_a_scan(store, tmp_path, way):
    """The scanner holds a block and waits for the library; a fork waits for both, in that order. A child
    made by clone waits for neither: the scanner does not exist there."""
    ran = subprocess.run(
        [compiled("forks", tmp_path), str(SIZE_MIB), way],
        env=os.environ | store | PRELOAD | {"MAYFLY_MERGE_AUTO": "1M"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    assert int(ran.stdout.split()[0]) > 3


PRELOADED = """
import os, signal, sys
rows = [number.to_bytes(8, "little") * 512 for number in range(6144)]
table = b"".join(rows)
children = []
for _ in range(3):
    children.append(os.fork())
    if not children[-1]:
        signal.pause()
print(os.getpid(), *children, flush=True)
sys.stdin.readline()
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
sys.stdin.readline()
print("same" if table == b"".join(rows) else "other", flush=True)
"""


def pss_mib(pids):
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(text.split("Pss:")[1].split()[0]) for text in texts) / 1024


def test_blocks_that_a_fork_shares_wait_for_the_childrens_end(store):
    """As in a server that loads its data before it forks: the store's copy would be one more."""
    with running_under([sys.executable, "-c", PRELOADED], store, auto="4M") as process:
        pids = process.stdout.readline().split()
        before = pss_mib(pids)
        time.sleep(5)
        assert pss_mib(pids) < before + SIZE_MIB / 4, before
        process.stdin.write("\n")
        process.stdin.flush()
        until_smaller([process], anonymous_mib(process) - 0.9 * SIZE_MIB)
        assert process.communicate("\n", timeout=60) == ("same\n", "")


def test_small_blocks_and_many_mappings(program, store):
    """The table of mappings is itself a large block when blocks of 64K are: reading it must not deadlock."""
    with started(program, store, auto="64K") as process:
        until_smaller([process], 0.4 * ALLOCATED_MIB)
        assert finish(process) == ""


def test_large_blocks_before_mayflys_heap(program, store):
    """The heap's own functions never get a block that the heap does not know: containers have both."""
    both = f"{AUTO}:{AUTO.with_name('libmayfly_heap.so')}"
    with started(program, store, LD_PRELOAD=both) as process:
        finish(process)


def test_scanner_thread_receives_no_signals(store, tmp_path):
    words = [compiled("signals", tmp_path)]
    environment = os.environ | store | PRELOAD | {"MAYFLY_MERGE_AUTO": "1M"}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_program_that_has_forbidden_itself_files_reads_no_line(store, tmp_path):
    """xz does so. What it forbids the scanner is its own decision."""
    with running_under([compiled("sandboxed", tmp_path)], store) as process:
        said, errors = process.communicate(timeout=60)
    if process.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    assert (process.returncode, said, errors) == (0, "done\n", "")


@pytest.mark.parametrize("how", ["seccomp", "unshare"])
def test_the_scanner_ends_before_the_program_restricts_itself(store, tmp_path, how):
    """A filter of system calls would end the process at the scanner's next one, and a namespace of its own
    wants a process of one thread."""
    ran = subprocess.run(
        [compiled("restricted", tmp_path), how],
        env=os.environ | store | PRELOAD | {"MAYFLY_MERGE_AUTO": "1M"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if ran.returncode == 77:
        pytest.skip(f"no {how} here")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


LOCKED = """
import ctypes, sys
def block(mib):
    return b"".join(number.to_bytes(8, "little") * 512 for number in range(mib << 8))
locked, other = block(4), block(int(sys.argv[1]))
if ctypes.CDLL(None).mlock(ctypes.c_void_p(id(locked)), ctypes.c_size_t(4 << 20)):
    sys.exit("mlock")
print("at rest", flush=True)
sys.stdin.readline()
"""


def test_locked_memory_is_left_and_the_rest_shared(store):
    """The refusal of one block says nothing of the next."""
    with running_under([sys.executable, "-c", LOCKED, str(SIZE_MIB)], store) as process:
        at_rest(process)
        until_smaller([process], anonymous_mib(process) - 0.9 * SIZE_MIB)
        assert process.communicate("\n", timeout=60)[1] == ""


def test_reports_a_line_if_all_memory_is_refused(store):
    with running_under([sys.executable, "-c", LOCKED, "0"], store) as process:
        line = process.stderr.readline()
        assert "shares nothing" in line and "locked" in line
        process.communicate("\n", timeout=60)


def test_without_a_store_shares_nothing_and_reports_one_line(program, tmp_path):
    nowhere = {"MAYFLY_SHARE_SOCKET": str(tmp_path / "none"), "MAYFLY_MERGE_PATH": "engine"}
    with started(program, nowhere) as process:
        assert select.select([process.stderr], [], [], 60)[0]
        said = process.stderr.readline()
        assert anonymous_mib(process) > 3 * SIZE_MIB
        said += finish(process)
    assert "shares nothing" in said and "mayfly share" in said
    assert len(set(said.splitlines())) == 1  # its forked child reports the same


@pytest.mark.parametrize("value", ["12", "much", "4X", "-1"])
def test_reports_a_wrong_size_and_stays_off(program, value):
    ran = subprocess.run(
        ["/bin/echo", "hello"],
        env=os.environ | {"LD_PRELOAD": str(AUTO), "MAYFLY_MERGE_AUTO": value},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "hello\n" and ran.returncode == 0
    assert f"MAYFLY_MERGE_AUTO={value}" in ran.stderr and ran.stderr.count("\n") == 1


def run_with(words, folder, **environment):
    return subprocess.run(
        words,
        env=os.environ | {"LD_PRELOAD": str(AUTO), "HOME": str(folder)} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


GO = """package main

// #include <stdlib.h>
import "C"
import "fmt"

func main() { C.free(C.malloc(1)); fmt.Println("hello") }
"""
JAVA = 'class Hello { public static void main(String[] words) { System.out.println("hello"); } }\n'


def hello(runtime, folder):
    """A program that prints hello, as command words."""
    program = {"V8": "node", "a JVM": "java", "Go's runtime": "go", "Ruby": "ruby", "PHP": "php"}[runtime]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    if program == "node":
        return ["node", "-e", "console.log('hello')"]
    if program == "ruby":
        return ["ruby", "-e", "puts 'hello'"]
    if program == "php":
        return ["php", "-r", 'echo "hello\\n";']
    if program == "java":
        if not shutil.which("javac"):
            pytest.skip("javac is not installed")
        (folder / "Hello.java").write_text(JAVA)
        subprocess.run(["javac", "Hello.java"], cwd=folder, check=True)
        return ["java", "-Xshare:auto", "-cp", folder, "Hello"]
    (folder / "go.mod").write_text("module hello\n")
    (folder / "main.go").write_text(GO)
    environment = os.environ | {"CGO_ENABLED": "1", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    subprocess.run(["go", "build", "-o", "hello", "."], cwd=folder, env=environment, check=True)
    return [folder / "hello"]


@pytest.mark.parametrize("runtime", ["V8", "a JVM", "Go's runtime", "Ruby", "PHP"])
def test_reports_a_runtime_with_its_own_heap_in_one_line(runtime, tmp_path):
    words = hello(runtime, tmp_path)
    ran = run_with(words, tmp_path, MAYFLY_MERGE_AUTO="4M")
    assert ran.stdout == "hello\n" and ran.returncode == 0, ran.stderr
    said = [line for line in ran.stderr.splitlines() if "mayfly" in line]
    assert len(said) == 1 and f"{runtime} maps its heap by itself" in said[0], ran.stderr
    off = run_with(words, tmp_path)
    assert off.stdout == "hello\n" and "mayfly" not in off.stderr


NODE = """
const table = Buffer.alloc(64 << 20);
const word = (i) => (i * 2654435761) >>> 0;
for (let i = 0; i < table.length; i += 4) table.writeUInt32LE(word(i), i);
console.log("at rest");
process.stdin.once("data", () => {
  let wrong = 0;
  for (let i = 0; i < table.length; i += 4) wrong += table.readUInt32LE(i) !== word(i);
  console.log(wrong ? "wrong" : "done");
  process.exit(0);
});
"""


def test_shares_buffers_of_node(store, tmp_path):
    """Node.js is linked without PIE, and takes the address of realloc."""
    node = shutil.which("node")
    if not node:
        pytest.skip("node is not installed")
    (tmp_path / "table.js").write_text(NODE)
    words = [node, tmp_path / "table.js"]
    with running_under(words, store) as one, running_under(words, store) as other:
        until_smaller([at_rest(one), at_rest(other)], 40, seconds=120)
        for process in (one, other):
            assert "V8 maps its heap" in finish(process)


def test_reports_no_other_programs(tmp_path):
    for words in (["/bin/echo", "hello"], ["python3", "-c", "print('hello')"]):
        ran = run_with(words, tmp_path, MAYFLY_MERGE_AUTO="4M")
        assert (ran.stdout, ran.stderr) == ("hello\n", "")
