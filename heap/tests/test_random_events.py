"""Random programs, sampled and not: each must end as it does unsampled.

They fork, exec, close files and change users; their disk is full; they are in namespaces; they are killed.
`MAYFLY_SOAK=1 heap/tests/run -n 4 -k random_events` goes on where the last one stopped, up to 10,000 events,
then up to the next 10,000; target/soak has the counts. What an event does follows from the seed, its part and
its number alone, so a failed one can be repeated.
"""

import contextlib
import os
import random
import signal
import subprocess

import pytest
from preloaded import ROOT, build
from test_recording import Profiler

# Each may run beside the others: most of the time of a program is waiting.
PARTS = 4
FEW, MANY = 16, 10_000
ACTIONS = [
    "churn",
    "system",
    "exec",
    "fork",
    "clone",
    "close",
    "nobody",
    "limit",
    "truncate",
    "unlink",
    "sleep",
]
NAMESPACES = [["-pf"], ["-pf", "--mount-proc"], ["-m"], ["-n"], ["-Ur"], ["-pfmn"]]
WAYS = ["PROFILE", "PROFILE", "TRACE", "socket", "mayfly profile", "mayfly trace", "attached"]
# The shell's status of a killed program, and `timeout`'s own.
KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL, 124}
DISK_PAGES = 64
# $0 is mayfly, $1 the profile's name or nothing, then follows the program, which becomes this process.
ATTACHED = """
if [ -n "$1" ]; then
    (unset LD_PRELOAD; exec "$0" profile --pid $$ --seconds 0.6 --every 16k -o "$1") >/dev/null 2>&1 &
else
    sleep 0.6 >/dev/null 2>&1 &
fi
shift
exec "$@"
"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB, or None where none can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_PAGES * 4}k", "none", folder]
    is_there = subprocess.run(["mount", *options], capture_output=True).returncode == 0
    yield folder if is_there else None
    if is_there:
        subprocess.run(["umount", "-l", folder], check=True)


def is_killed(result, unkilled):
    """Whether a result is that of a killed program, or else the same; it may have said what it says."""
    found, whole = ({"status": status, "lines": out.splitlines()} for status, out in (result, unkilled))
    for one in (found, whole):
        if one["lines"] and one["lines"][-1].startswith("status "):
            one["status"] = int(one["lines"].pop().removeprefix("status "))
    is_part = all(found["lines"].count(line) <= whole["lines"].count(line) for line in found["lines"])
    return is_part and found["status"] in {whole["status"], *KILLED}


class Events:
    """Runs one event after another."""

    def __init__(self, heap, folder, disk):
        self.heap, self.folder, self.disk = heap, folder, disk
        self.mayfly = heap.library.parent / "mayfly"
        namespaces = [["unshare", *options] for options in NAMESPACES]
        self.namespaces = [
            one for one in namespaces if subprocess.run([*one, "true"], capture_output=True).returncode == 0
        ]
        self.ways = [way for way in WAYS if self.mayfly.is_file() or way.isupper() or way == "socket"]

    def start(self, command, **variables):
        """What the program says and how it ends, and all that was printed."""
        variables = {f"MAYFLY_HEAP_{name}": str(value) for name, value in variables.items()}
        named = variables.get("MAYFLY_HEAP_PROFILE") or variables.get("MAYFLY_HEAP_TRACE", "")
        variables["MAYFLY_HEAP_PROFILE_BYTES"] = "16384"
        status, out, err = self.heap.start(
            command, 120, self.heap.environment(RECORDED_FILE=named, **variables)
        )
        return (status, out), err

    def run(self, dice, number):
        """Runs a random program unsampled and sampled; a text if they end differently."""
        actions = dice.choices(ACTIONS, k=dice.randint(1, 6))
        if os.geteuid():
            actions = [action for action in actions if action != "nobody"]
        actions += dice.choice([[], ["threads", "churn"], ["kill"]])
        program = [build("recorded"), *actions]
        if self.namespaces and dice.random() < 0.5:
            program = [*dice.choice(self.namespaces), *program]
        # A kill at some moment may come before or after the program's own end.
        kill = dice.choice([[], ["timeout", "-s", "KILL", f"{dice.uniform(0, 0.3):.3f}"]])
        folder = dice.choice([self.folder, self.disk or self.folder])
        way = dice.choice(self.ways)
        # Below `mayfly trace` a shell is the first process: without %p the trace would be of it alone.
        name = dice.choice(["", ".%p"]) if way != "mayfly trace" else ".%p"
        file = folder / f"{number}{name}"
        full = dice.randint(0, DISK_PAGES)
        self.fill(full)
        plainly, sampled = self.both(way, program, kill, file)
        self.clean(number)
        if plainly[0] == sampled[0] or (kill and is_killed(sampled[0], plainly[0])):
            return None
        words = [str(word) for word in [*kill, *program]]
        return f"{way} into {file}, {full} pages full: {words}: {plainly} unsampled, {sampled} sampled"

    def both(self, way, program, kill, file):
        """How the program ends unsampled, and sampled in this way and perhaps killed."""
        if way in ("PROFILE", "TRACE"):
            return self.start(program), self.start([*kill, *program], **{way: file})
        if way == "socket":
            with collector(self.folder) as path:
                return self.start(program), self.start([*kill, *program], PROFILE=f"socket:{path}")
        if way == "attached":
            start = ["sh", "-c", ATTACHED, self.mayfly]
            plainly = self.start([*start, "", *program], CONTROL="on")
            return plainly, self.start([*start, file, *kill, *program], CONTROL="on")
        # The command's own status tells of what it could not write as well: the program's is in the output.
        told = ["sh", "-c", '"$@"; echo "status $?"', "sh"]
        options = [way.split()[1], "-o", file, *(["--every", "16k"] if "profile" in way else [])]
        heap = [f"MAYFLY_HEAP_LIB={self.heap.library}"]
        below = ["env", "-u", "LD_PRELOAD", *heap, self.mayfly, *options, "--"]
        (_, plain), plain_err = self.start([*told, *program])
        (_, out), err = self.start([*below, *told, *kill, *program])
        return ((0, plain), plain_err), ((0, out), err)

    def fill(self, pages):
        if self.disk:
            with (self.disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                file.write(bytes(4096 * pages))

    def clean(self, number):
        for path in [*(self.disk.iterdir() if self.disk else []), *self.folder.glob(f"{number}*")]:
            subprocess.run(["rm", "-rf", path], check=True)


@contextlib.contextmanager
def collector(folder):
    """A profiler's socket, for as long as it is used."""
    profiler = Profiler(folder)
    try:
        yield profiler.path
    finally:
        profiler.profiles()
        profiler.listener.close()
        profiler.path.unlink()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_events(heap, tmp_path, small_disk, part, pytestconfig):
    heap.ours()
    if not os.environ.get("MAYFLY_SOAK"):
        done, last, counted = 0, FEW // PARTS, None
    else:
        counted = ROOT / f"target/soak/random_events.{part}"
        counted.parent.mkdir(parents=True, exist_ok=True)
        done = int(counted.read_text()) if counted.is_file() else 0
        last = (done * PARTS // MANY + 1) * MANY // PARTS
    events = Events(heap, tmp_path, small_disk)
    for number in range(done, last):
        dice = random.Random(f"{pytestconfig.option.seed} {part} {number}")
        failed = events.run(dice, number)
        if failed and os.environ.get("MAYFLY_SOAK"):
            with counted.with_name(f"failed.{part}").open("a") as file:
                file.write(f"{part} {number}: {failed}\n")
        assert not failed, f"event {number} of part {part}: {failed}"
        if counted:
            fresh = counted.with_name(f"new.{part}")
            fresh.write_text(f"{number + 1}\n")
            fresh.rename(counted)
