"""`mayfly share run`: one layout, one hash seed and one page store for the processes of a command."""

import contextlib
import ctypes
import os
import pathlib
import select
import shutil
import signal
import socket as sockets
import struct
import subprocess
import sys
import time
import urllib.request

import pytest
from store import HERE, ROOT, check, until

MEMORY = 0.5  # of plain's PSS, at most; 0.36 where it was measured
TABLE_MIB = 32  # programs/cluster.js
TWO_CHILDREN = """
import subprocess, sys
CHILD = "print(hash('mayfly'), *(line for line in open('/proc/self/maps') if 'libc.so' in line), sep='|')"
print(*(subprocess.check_output([sys.executable, "-c", CHILD]).split(b"\\n")[0] for _ in range(2)), sep="\\n")
"""


class Launcher:
    """`mayfly share run` with a temporary folder of its own, where its store has its socket."""

    def __init__(self, built, folder):
        self.built, self.folder = built, folder
        if not (built.folder / "libmayfly_merge_auto.so").exists():
            pytest.fail(f"no {built.folder}/libmayfly_merge_auto.so; cargo build -p mayfly_merge_auto")

    def environment(self, **more):
        own = ("MAYFLY_", "PYTHON", "XDG_RUNTIME_DIR")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        return environment | {"TMPDIR": str(self.folder), "PYTHONPATH": str(ROOT / "python")} | more

    def words(self, *command, options=()):
        return [str(word) for word in (self.built.mayfly, "share", "run", *options, "--", *command)]

    def run(self, *command, options=(), timeout=60, environment=None, **more):
        return subprocess.run(
            self.words(*command, options=options),
            env=self.environment(**(environment or {})),
            capture_output=True,
            text=True,
            timeout=timeout,
            **more,
        )

    @contextlib.contextmanager
    def started(self, *command, **more):
        process = subprocess.Popen(
            self.words(*command),
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **more,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def stores(self):
        """The processes that serve sockets in this folder."""
        found = []
        for path in self.folder.glob("mayfly-share-*/share.socket"):
            probe = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
            with probe, contextlib.suppress(OSError):
                probe.connect(str(path))
                credentials = probe.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12)
                found.append(struct.unpack("3i", credentials)[0])
        return found

    def left(self):
        return list(self.folder.glob("mayfly-share-*"))


@pytest.fixture
def launcher(built, tmp_path):
    found = Launcher(built, tmp_path)
    yield found
    until(lambda: not found.left(), "the store ended and removed its folder", 10)


def said(done):
    check(done.returncode == 0 and done.stderr == "", f"exit status {done.returncode}: {done.stderr}")
    return done.stdout.splitlines()


@pytest.mark.parametrize("status", [0, 3])
def test_exit_status_is_the_commands(launcher, status):
    done = launcher.run("sh", "-c", f"echo hello; exit {status}")
    assert (done.returncode, done.stdout, done.stderr) == (status, "hello\n", "")


def test_a_signal_that_ends_the_command_is_shown(launcher):
    """As a shell shows it: 128 + the signal."""
    words = launcher.words("sh", "-c", "kill -KILL $$")
    done = subprocess.run(["bash", "-c", '"$@"; exit $?', "bash", *words], env=launcher.environment())
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(launcher, which):
    program = (
        "import signal, sys\n"
        f"signal.signal({int(which)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    with launcher.started(sys.executable, "-c", program) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(which)
        assert process.wait(20) == 7


def test_interrupt_from_the_terminal_leaves_the_store_to_the_command(launcher):
    """It goes to the foreground's processes, which the store is none of."""
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    with launcher.started(sys.executable, "-c", program, start_new_session=True) as process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None and len(launcher.stores()) == 1
        process.stdin.close()
        assert process.wait(20) == 0


def test_the_store_is_no_child_of_the_command(launcher):
    program = "import os\ntry: os.wait()\nexcept ChildProcessError: print('no child')"
    assert said(launcher.run(sys.executable, "-c", program)) == ["no child"]


def test_the_store_has_no_files_of_the_command(launcher):
    mine, theirs = os.pipe()
    program = f"import os, sys; os.close({theirs}); print('closed', flush=True); sys.stdin.read()"
    with launcher.started(sys.executable, "-c", program, pass_fds=[theirs]) as process:
        os.close(theirs)
        assert process.stdout.readline() == "closed\n" and launcher.stores()
        ready, _, _ = select.select([mine], [], [], 10)
        assert ready and os.read(mine, 1) == b""
    os.close(mine)


def test_layout_and_seed_are_equal_in_children(launcher):
    one, two = said(launcher.run(sys.executable, "-c", TWO_CHILDREN))
    assert one == two and "libc.so" in one
    again, _ = said(launcher.run(sys.executable, "-c", TWO_CHILDREN))
    assert again.split("|")[0] != one.split("|")[0], "each start has a seed of its own"
    assert again.split("|")[1:] == one.split("|")[1:]


def test_layout_differs_with_aslr_kept(launcher):
    one, two = said(launcher.run(sys.executable, "-c", TWO_CHILDREN, options=["--keep-aslr"]))
    assert one.split("|")[0] == two.split("|")[0]
    assert one.split("|")[1:] != two.split("|")[1:]


@pytest.mark.parametrize(
    ("options", "variables", "seed"),
    [
        (["--hash-seed", "7"], {}, "7"),
        (["--hash-seed", "0"], {"PYTHONHASHSEED": "3"}, "0"),
        ([], {"PYTHONHASHSEED": "3"}, "3"),
        (["--hash-seed", "random"], {"PYTHONHASHSEED": "random"}, None),
        ([], {"PYTHONHASHSEED": ""}, None),
    ],
)
def test_hash_seed(launcher, options, variables, seed):
    (found,) = said(launcher.run("printenv", "PYTHONHASHSEED", options=options, environment=variables))
    assert found == seed or (seed is None and 0 < int(found) < 1 << 32)


@pytest.mark.parametrize("given", ["4294967296", "-1", "chance", ""])
def test_refuses_a_wrong_seed(launcher, given):
    done = launcher.run("true", options=[f"--hash-seed={given}"])
    assert done.returncode == 2 and "must be random, or 0 to 4294967295" in done.stderr


def test_variables_that_are_set_are_kept(launcher, store):
    kept = {
        "MAYFLY_SHARE_SOCKET": str(store.socket),
        "MAYFLY_MERGE_AUTO": "64K",
        "MAYFLY_MERGE_LIBRARY": str(launcher.built.library),
        "_RJEM_MALLOC_CONF": "narenas:2",
        "DUCKDB_JE_MALLOC_CONF": "narenas:1",
    }
    found = said(launcher.run("printenv", *kept, environment=kept))
    assert found == list(kept.values())
    with launcher.started("cat"):
        until(launcher.stores, "without a given store it starts one")


def test_large_blocks_of_jemalloc_begin_a_page(launcher):
    found = said(launcher.run("printenv", "_RJEM_MALLOC_CONF", "DUCKDB_JE_MALLOC_CONF"))
    assert found == ["cache_oblivious:false"] * 2


def test_socket_is_this_users_own(launcher):
    script = 'stat -c %a "${MAYFLY_SHARE_SOCKET%/*}"; test -S "$MAYFLY_SHARE_SOCKET" && echo served'
    assert said(launcher.run("sh", "-c", script)) == ["700", "served"]


def test_no_such_command(launcher):
    done = launcher.run("no-such-command")
    assert (done.returncode, done.stderr) == (127, "mayfly: no-such-command: command not found\n")


def test_no_room_for_the_socket(launcher):
    missing = launcher.folder / "none"
    done = launcher.run("true", environment={"TMPDIR": str(missing)})
    lines = done.stderr.splitlines()
    assert done.returncode == 125 and len(lines) == 2, done.stderr
    assert str(missing) in lines[0] and "store has not started" in lines[1]


def refuse_personality():
    """A seccomp filter that answers EPERM to personality(2), as containers' do."""
    load, jump_if_equal, result = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050001
    rows = [(load, 0, 0, 0), (jump_if_equal, 0, 1, 135), (result, 0, 0, refuse), (result, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0


def test_runs_on_where_personality_is_refused(launcher):
    done = launcher.run("echo", "hello", preexec_fn=refuse_personality)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr.count("\n") == 1 and "Operation not permitted" in done.stderr
    kept = launcher.run("echo", "hello", options=["--keep-aslr"], preexec_fn=refuse_personality)
    assert said(kept) == ["hello"]


def test_the_store_ends_when_the_command_is_killed(launcher):
    with launcher.started("cat") as process:
        until(launcher.stores, "the store serves")
        (store,) = launcher.stores()
        process.kill()
        process.wait()
        until(lambda: not launcher.left() and not os.path.exists(f"/proc/{store}"), "the store ended", 10)


def test_the_store_ends_when_the_launcher_is_killed_at_any_time(launcher):
    """The launcher becomes the command: before, too, the store ends with it."""
    for step in range(20):
        with launcher.started("cat") as process:
            time.sleep(step * 0.003)
            process.kill()
    until(lambda: not launcher.left(), "all stores ended", 20)


def pss_mib(pids):
    def of(pid):
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.split("Pss:")[1].split()[0]) / 1024

    return sum(map(of, pids))


@contextlib.contextmanager
def server(launcher, *words, plain=False):
    program = [sys.executable, HERE / "programs/objects.py", *words]
    command = [str(word) for word in program] if plain else launcher.words(*program)
    process = subprocess.Popen(
        command, env=launcher.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield [int(pid) for pid in process.stdout.readline().split()]
        process.stdin.close()
        check(process.wait(120) == 0, "a worker's table has changed")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_workers_of_equal_objects_share(launcher):
    with server(launcher, plain=True) as pids:
        plain = pss_mib(pids)
    with server(launcher, "advise") as pids:
        until(lambda: pss_mib(pids) <= MEMORY * plain, f"the workers have {MEMORY} of {plain:.0f} MiB", 60)


def shared_mib(pid):
    """Its mappings of the store's segments whose pages are in its page table."""
    total, inside = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, value = line.split()[:2]
        if not name.endswith(":"):
            inside = "mayfly-pages" in line
        elif inside and name in ("Rss:", "Anonymous:"):
            total += int(value) / 1024 * (1 if name == "Rss:" else -1)
    return total


def fetch(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as response:
        return response.read().decode()


def test_nodes_cluster_shares_its_buffers(launcher):
    """A primary and its workers write one line about V8's heap, not one each."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    with launcher.started("node", HERE / "programs/cluster.js", stderr=subprocess.PIPE) as process:
        port, *workers = process.stdout.readline().split()
        until(
            lambda: all(shared_mib(pid) > 0.95 * TABLE_MIB for pid in workers),
            "the workers share their tables",
            120,
        )
        answers = set()
        until(
            lambda: answers.add(fetch(port)) or len(answers) == len(workers),
            "each worker has answered",
        )
        assert answers == {f"{pid} 0" for pid in workers}
        assert len(launcher.stores()) == 1
        process.stdin.close()
        assert process.wait(60) == 0
        (line,) = process.stderr.read().splitlines()
        assert "V8 maps its heap by itself" in line
        process.stderr.close()
