"""One command run plainly and with a library preloaded: whether it writes the same and ends alike."""

import os
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass

# In namespaces of its own a command has no network, an empty /tmp, and no processes that outlive it.
# The shell is process 1 there: coreutils' timeout refuses to be that, with 125 and no word.
SEPARATE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
BEGIN = "ip link set lo up && mount -t tmpfs tmpfs /tmp && install -d -o smoke /tmp/home && cd /tmp/home"
# Merging freezes pages with userfaultfd, for which a user needs access to the device; here to one of its own.
ALLOW = """[ ! -c /dev/userfaultfd ] || {
mknod -m 666 /tmp/device c $(stat -c '0x%t 0x%T' /dev/userfaultfd) &&
mount --bind /tmp/device /dev/userfaultfd && rm /tmp/device; }"""
USER = ["setpriv", "--reuid=smoke", "--regid=smoke", "--clear-groups"]
LARGEST_OUTPUT = 16 << 20
TIMED_OUT = 124, 137
# What the automatic mode says of runtimes that map their heaps themselves; docs/merge.md.
EXPECTED = re.compile(r"^mayfly-merge: MAYFLY_MERGE_AUTO: .* maps its heap by itself, .*\n", re.M)


@dataclass
class Run:
    status: int
    streams: tuple[list[str], list[str]]


@dataclass
class Verdict:
    outcome: str  # "same", "failure" or "left out"
    why: str = ""


def quiet(*words, **more):
    """A command of the system's own, without questions; its output is kept."""
    own = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        words, capture_output=True, text=True, env=own, stdin=subprocess.DEVNULL, check=False, **more
    )


def run(command, environment, limit_s):
    own = {"HOME": "/tmp/home", "USER": "smoke", "TERM": "dumb", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    own |= {"PERL_HASH_SEED": "0", "PYTHONHASHSEED": "0"}  # else tables are in another order each time
    own["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/games"
    words = [f"{name}={value}" for name, value in (own | environment).items()]
    inner = [*USER, "prlimit", f"--fsize={LARGEST_OUTPUT}", "--core=0", "env", "-i", *words]
    inner += ["timeout", "--kill-after=1", str(limit_s), "sh", "-c", command]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        outer = [*SEPARATE, "sh", "-c", f"{BEGIN} && {ALLOW} || exit 125; {shlex.join(inner)}; exit $?"]
        done = subprocess.run(outer, stdin=subprocess.DEVNULL, stdout=said, stderr=complained, check=False)
        texts = []
        for file in (said, complained):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
    texts[1] = EXPECTED.sub("", texts[1])
    return Run(done.returncode, tuple(text.splitlines() for text in texts))


def check(environment):
    """Whether commands run at all, and with the library: without either nothing would ever differ."""
    library = environment["LD_PRELOAD"]
    for own, expected in (({}, "0"), (environment, "1")):
        told = run(f"grep -q {library} /proc/self/maps && echo 1 || echo 0", own, 60)
        if told != Run(0, ([expected], [])):
            raise SystemExit(f"programs: a first command with {own} should say {expected}: {told}")


def steady(runs, stream):
    """A stream's lines that all runs have alike, None for each other one; None if their number differs."""
    texts = [run.streams[stream] for run in runs]
    if len({len(text) for text in texts}) > 1:
        return None
    return [lines[0] if len(set(lines)) == 1 else None for lines in zip(*texts, strict=True)]


def difference(plain, other):
    """The first thing in which a run differs from what all plain runs have alike, or an empty text."""
    found = []
    if other.status != plain[0].status:
        found.append(f"ends with {other.status} instead of {plain[0].status}")
    for stream, name in enumerate(("output", "errors")):
        expected, got = steady(plain, stream), other.streams[stream]
        if expected is None:
            continue
        for number in range(max(len(expected), len(got))):
            before = expected[number] if number < len(expected) else "(no line)"
            after = got[number] if number < len(got) else "(no line)"
            if before is not None and before != after:
                found.append(f"{name}, line {number + 1}: {after[:300]!r} instead of {before[:300]!r}")
                break
    return "; ".join(found)


def compared(command, environment, limit_s):
    """Runs a command twice plainly and once with the library; a difference is looked at once more."""
    plain = [run(command, {}, limit_s)]
    if plain[0].status in TIMED_OUT:
        return Verdict("left out", f"does not end within {limit_s} s")
    if plain[0].status in (126, 127):
        return Verdict("left out", "cannot be started: " + " ".join(plain[0].streams[1])[:200])
    plain.append(run(command, {}, limit_s))
    for _ in range(2):
        other = run(command, environment, 3 * limit_s)
        if len({one.status for one in plain}) > 1:
            return Verdict("left out", "plain runs end differently")
        found = difference(plain, other)
        if not found:
            return Verdict("same")
        plain.append(run(command, {}, limit_s))
    return Verdict("failure", found)
