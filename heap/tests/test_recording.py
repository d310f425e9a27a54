"""Recording never hurts: a program whose allocations are sampled or traced ends as it does without.

Full disks, limits, other processes of the same number, files that are cut or removed, kills, execs, forks.
"""

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import threading

import pytest
from preloaded import build

HEADER, MODULES, CONTEXTS, CONTEXT, SAMPLED_AT = 256, 512 * 320, 32768, 736, 16 + 64 * 8
TRACE_HEADER, RECORD = 64, 48
OPEN, WHOLE = 1, 2
BUSY = ["threads", *["system"] * 20, "churn"]


def samples(profile):
    """The sampled allocations of a profile file's bytes."""
    assert profile[:8] == b"MAYFLYPF", f"it begins with {profile[:8]}"
    first = HEADER + MODULES + SAMPLED_AT
    places = range(first, first + CONTEXTS * CONTEXT, CONTEXT)
    return sum(struct.unpack_from("<Q", profile, place)[0] for place in places)


def trace_of(file):
    """State and records of a trace."""
    contents = file.read_bytes()
    assert contents[:8] == b"MAYFLYTR", f"it begins with {contents[:8]}"
    return struct.unpack_from("<I", contents, 20)[0], (len(contents) - TRACE_HEADER) // RECORD


@pytest.fixture
def recorded(heap):
    """Runs the program with a variable set; status, stdout, stderr."""
    heap.ours()

    def run(*actions, command=(), in_child=lambda: None, **variables):
        variables = {f"MAYFLY_HEAP_{name}": str(value) for name, value in variables.items()}
        variables.setdefault("MAYFLY_HEAP_PROFILE_BYTES", "16384")
        named = variables.get("MAYFLY_HEAP_PROFILE") or variables.get("MAYFLY_HEAP_TRACE", "")
        environment = heap.environment(RECORDED_FILE=named, **variables)
        return heap.start([*command, build("recorded"), *actions], 120, environment, in_child=in_child)

    return run


def ends_well(result, messages=0):
    status, out, err = result
    how = signal.Signals(-status).name if isinstance(status, int) and status < 0 else status
    assert (status, out) == (0, "fine\n"), f"{how}: {err}"
    lines = [line for line in err.splitlines() if line.startswith("mayfly-heap:")]
    assert len(lines) == messages, err


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


class Profiler:
    """Collects memory files, as `mayfly profile` does."""

    def __init__(self, folder):
        self.path, self.files = folder / "socket", []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(4096)
        self.listener.settimeout(0.1)
        self.thread, self.stopped = threading.Thread(target=self.collect), False
        self.thread.start()

    def collect(self):
        while True:
            try:
                stream, _ = self.listener.accept()
            except TimeoutError:
                if self.stopped:
                    return
                continue
            stream.settimeout(2)
            with contextlib.suppress(TimeoutError):
                self.files += socket.recv_fds(stream, 1, 1)[1]
            stream.close()

    def profiles(self):
        """The bytes of each, once all have been received."""
        self.stopped = True
        self.thread.join()
        found = []
        for file in self.files:
            found.append(os.pread(file, os.fstat(file).st_size, 0))
            os.close(file)
        self.files = []
        return found


@pytest.fixture
def profiler(tmp_path):
    made = Profiler(tmp_path)
    yield made
    made.profiles()
    made.listener.close()


def test_a_profile_without_percent_p_and_a_program_that_starts_others(recorded, tmp_path):
    file = tmp_path / "profile"
    ends_well(recorded(*BUSY, PROFILE=file))
    assert samples(file.read_bytes()) > 1000
    assert [*tmp_path.iterdir()] == [file], "the programs that it starts have none"


def test_a_trace_without_percent_p_and_a_program_that_starts_others(recorded, tmp_path):
    file = tmp_path / "trace"
    ends_well(recorded("churn", "system", "churn", "system", "churn", TRACE=file))
    state, records = trace_of(file)
    assert state == WHOLE and records >= 3 * 2 * 20000


def test_one_number_in_two_pid_namespaces(recorded, tmp_path):
    """Two containers, or two sandboxes: both processes are number 1 and name one file."""
    two = "unshare -pf $0 $@ & one=$!; unshare -pf $0 $@ & wait $! && wait $one"
    for kind in ("PROFILE", "TRACE"):
        folder = tmp_path / kind
        folder.mkdir()
        status, out, err = recorded(
            "churn", "sleep", "churn", command=["bash", "-c", two], **{kind: folder / "%p"}
        )
        if "unshare failed" in err:
            pytest.skip("no PID namespaces")
        assert (status, out) == (0, "fine\nfine\n"), err
        # `unshare` itself, as its child before the exec, is recorded, too.
        files = [*folder.glob("1*")]
        if kind == "PROFILE":
            whole = [file for file in files if samples(file.read_bytes()) > 1000]
        else:
            whole = [file for file in files if trace_of(file)[0] == WHOLE and trace_of(file)[1] >= 80000]
        assert len(whole) == 2, [(file.name, file.stat().st_size) for file in files]


@pytest.mark.parametrize("kind", ["PROFILE", "TRACE"])
def test_a_full_disk(recorded, small_disk, kind):
    """Full from the start, and filling meanwhile: one line, and the program goes on."""
    for fill in (1 << 20, 200 << 10):
        with (small_disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.tell() < fill:
                file.write(bytes(4096))
        ends_well(recorded(*BUSY, **{kind: small_disk / "recording"}), messages=1)
        for path in small_disk.iterdir():
            path.unlink()


@pytest.mark.parametrize("kind", ["PROFILE", "TRACE"])
def test_a_limit_of_file_sizes(recorded, tmp_path, kind):
    """RLIMIT_FSIZE sends SIGXFSZ, which ends a program."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    ends_well(recorded(*BUSY, in_child=limit, **{kind: tmp_path / "at-start"}), messages=1)
    ends_well(recorded("churn", "limit", *BUSY, **{kind: tmp_path / "meanwhile"}), messages=1)


def test_one_of_several_threads_says_that_a_profile_ends(recorded, tmp_path):
    """All those that try to write at once fail; four in ten of these runs said it more than once."""
    for n in range(10):
        named = {"PROFILE": tmp_path / str(n), "PROFILE_BYTES": 4096}
        ends_well(recorded("threads", "sleep", "limit", "sleep", **named), messages=1)


def test_a_limit_of_file_sizes_below_a_profiler(recorded, profiler):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    ends_well(recorded("churn", in_child=limit, PROFILE=f"socket:{profiler.path}"), messages=1)


@pytest.mark.parametrize("kind", ["PROFILE", "TRACE"])
@pytest.mark.parametrize("action", ["truncate", "unlink", "close", "chroot", "nobody", "clone"])
def test_a_file_that_is_taken_away(recorded, tmp_path, kind, action):
    if os.geteuid() and action in ("chroot", "nobody"):
        pytest.skip("needs root")
    lost = kind == "TRACE" and action == "close"
    file = tmp_path / "recording"
    # A raw clone amid threads would find the locks that they hold, with any allocator.
    first = [action, "threads"] if action == "clone" else ["threads", action]
    ends_well(recorded("churn", *first, "churn", "churn", **{kind: file}), messages=lost)
    if action in ("close", "chroot", "nobody", "clone") and kind == "PROFILE":
        assert samples(file.read_bytes()) > 3000


def test_a_file_that_exists(recorded, tmp_path):
    """What another run has recorded is never overwritten, and an empty file is taken."""
    for kind in ("PROFILE", "TRACE"):
        file = tmp_path / kind
        file.write_bytes(b"another's")
        ends_well(recorded("churn", **{kind: file}), messages=1)
        assert file.read_bytes() == b"another's"
        file.write_bytes(b"")
        ends_well(recorded("churn", **{kind: file}))
        assert len(file.read_bytes()) > 10000


def test_folders_that_cannot_be_written(recorded, tmp_path):
    for kind in ("PROFILE", "TRACE"):
        ends_well(recorded("churn", **{kind: tmp_path / "missing/file"}), messages=1)
        ends_well(recorded("churn", **{kind: "/proc/file"}), messages=1)
    ends_well(recorded("churn", PROFILE="/dev/null"), messages=1)
    ends_well(recorded("churn", PROFILE=f"socket:{tmp_path}/none"), messages=1)
    ends_well(recorded("churn", TRACE="/dev/null"))
    ends_well(recorded("churn", TRACE="/dev/full"), messages=1)


def test_a_trace_into_a_pipe_without_a_reader(recorded, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["head", "-c", "100", pipe], stdout=subprocess.DEVNULL)
    ends_well(recorded("churn", "churn", TRACE=pipe), messages=1)
    reader.wait(10)


def test_an_exec_keeps_the_recording_before_it(recorded, profiler, tmp_path):
    """The same process runs another program: both recordings are there."""
    file = tmp_path / "profile"
    ends_well(recorded("churn", "exec", "churn", PROFILE=file))
    assert all(samples(path.read_bytes()) > 1000 for path in (file, file.with_name("profile.2")))
    file = tmp_path / "trace"
    ends_well(recorded("churn", "exec", "churn", TRACE=file))
    assert trace_of(file)[0] == OPEN and trace_of(file)[1] > 39000
    assert trace_of(file.with_name("trace.2")) == (WHOLE, trace_of(file.with_name("trace.2"))[1])
    ends_well(recorded("churn", "exec", "churn", PROFILE=f"socket:{profiler.path}"))
    assert all(samples(profile) > 1000 for profile in profiler.profiles()[-2:])


def test_a_killed_program_leaves_its_samples(recorded, profiler, tmp_path):
    file = tmp_path / "profile"
    assert recorded("churn", "kill", PROFILE=file)[0] == -signal.SIGKILL
    assert samples(file.read_bytes()) > 1000
    actions = (
        ["churn", "close", "nobody", "churn", "kill"] if os.geteuid() == 0 else ["churn", "churn", "kill"]
    )
    assert recorded(*actions, PROFILE=f"socket:{profiler.path}")[0] == -signal.SIGKILL
    assert samples(profiler.profiles()[-1]) > 3000


def test_forked_children_have_profiles_of_their_own(recorded, profiler, tmp_path):
    ends_well_of_two(recorded("churn", "fork", "churn", PROFILE=tmp_path / "%p.profile"))
    files = [*tmp_path.glob("*.profile")]
    assert len(files) == 2 and all(samples(file.read_bytes()) > 1000 for file in files)
    ends_well_of_two(recorded("churn", "fork", "churn", PROFILE=f"socket:{profiler.path}"))
    assert all(samples(profile) > 1000 for profile in profiler.profiles()[-2:])


def test_a_profiler_attaches_below_a_limit_of_file_sizes(heap):
    """The memory file that it sends cannot get its length: the heap refuses, and the program goes on."""
    heap.ours()
    command = [build("recorded"), "limit", *["sleep"] * 10, "threads", *["churn", "sleep"] * 20]
    environment = heap.environment(MAYFLY_HEAP_CONTROL="on")
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0mayfly-profile-{program.pid}")
        listener.listen()
        listener.settimeout(30)
        stream, _ = listener.accept()
        memory = os.memfd_create("profile", os.MFD_ALLOW_SEALING)
        socket.send_fds(stream, [struct.pack("<Q", 16384)], [memory])
        os.close(memory)
        stream.settimeout(30)
        assert stream.recv(8) == struct.pack("<Q", 2), "it cannot map the file"
    assert program.communicate(timeout=60) == (b"fine\n", None) and program.returncode == 0


def ends_well_of_two(result):
    status, out, err = result
    assert (status, out, err) == (0, "fine\nfine\n", ""), (status, err)
