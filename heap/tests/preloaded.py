"""Test programs, compiled when they are first needed and run with the heap preloaded."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "heap/tests/programs"
BUILD = ROOT / "heap/tests/build"
FLAGS = "-O1 -g -Wall -Wextra -fno-builtin -pthread -Wno-alloc-size-larger-than -Wno-use-after-free"
COMPILERS = {".c": "gcc -std=gnu11", ".cc": "g++ -std=c++17"}


def source(name):
    [found] = SOURCES.glob(f"{name}.c*")
    return found


def directives(name):
    """The directives in a source's first comment lines: `// flags: -ldl`, `// library`."""
    head = re.match(r"(//.*\n)*", source(name).read_text())[0]
    return {key: value or "yes" for key, value in re.findall(r"^// *([a-z]+)(?:: *(.*))?$", head, re.M)}


def build(name, copy="", *more):
    """The program or library of a source, compiled where it is missing or old, or when it needs `more`."""
    words = directives(name)
    library = ["-shared", "-fPIC"] if "library" in words else []
    target = BUILD / f"{Path(name).name}{copy}{'.so' if library else ''}"
    newest = max(file.stat().st_mtime for file in [source(name), *SOURCES.glob("*.h")])
    if more or not target.exists() or target.stat().st_mtime <= newest:
        BUILD.mkdir(exist_ok=True)
        # To a name of its own first: another run may be executing the old file.
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        command = f"{COMPILERS[source(name).suffix]} {FLAGS} -Wno-free-nonheap-object".split()
        command += [*library, "-o", fresh, source(name), *words.get("flags", "").split(), *more]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{name} does not compile:\n{done.stderr}"
        fresh.rename(target)
    return target


def libraries(name):
    """Copies of a library of heap/tests/programs/libraries, as many as its source asks for."""
    name = f"libraries/{name}"
    return [build(name, n or "") for n in range(int(directives(name).get("copies", 1)))]


def start(command, timeout, environment, cwd=BUILD, limit=None, in_child=lambda: None):
    """Exit status (or "timeout"), stdout and stderr of a command, with `limit` as RLIMIT_AS."""

    def prepare():
        in_child()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Files, not pipes: a program's forgotten child must not keep this one waiting.
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=environment,
            start_new_session=True,
            preexec_fn=prepare,
        )
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            status = "timeout"
            os.killpg(child.pid, signal.SIGTERM)
            time.sleep(2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # also the children of a failed program
        child.wait()
        out.seek(0)
        err.seek(0)
        return status, out.read().decode(errors="replace"), err.read().decode(errors="replace")


class Heap:
    """The library under test, which `start` and `run` preload; None preloads nothing."""

    def __init__(self, library, spans):
        self.library, self.spans = library, spans

    def ours(self):
        """Skips unless our own library is under test: its messages and variables follow."""
        if not self.library or "mayfly" not in self.library.name:
            pytest.skip("about messages and variables of our own library")

    def environment(self, *preload, **more):
        """The environment with the library preloaded, or `preload` in its place (None: nothing)."""
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        if preload := [str(file) for file in preload or [self.library] if file]:
            environment["LD_PRELOAD"] = ":".join(preload)
        if self.spans:
            environment["MAYFLY_HEAP_SPANS"] = self.spans
        return environment | more

    def start(self, command, timeout=300, environment=None, **more):
        """Exit status (or "timeout"), stdout and stderr of a program."""
        return start(command, timeout, environment or self.environment(), **more)

    def run(self, command, *arguments, **more):
        """Stdout and stderr of a command that must succeed."""
        status, out, err = self.start(command, *arguments, **more)
        how = signal.Signals(-status).name if isinstance(status, int) and status < 0 else status
        assert status == 0, f"{how}: {err[-2000:] or out[-2000:]}"
        return out, err
