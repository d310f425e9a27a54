"""The redis-server that benches run on every allocator: it takes memory by malloc's own functions alone.

Redis 8 takes memory by jemalloc's extended interface (mallocx) and frees it by malloc's `free`, or the other
way round. Such a program cannot run on a preloaded allocator that has one of the two interfaces, as glibc's
has. Where the installed one is such a program, the same version is built from Debian's source without
jemalloc.
"""

import os
import shutil
import subprocess
from pathlib import Path

from bench import debian_source
from bench.heap.server import tool
from bench.outcome import BenchError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mayfly" / "redis"


def server() -> Path:
    """The program; builds it in a minute or two if the installed one does not serve and none was built."""
    installed = Path(tool("redis-server"))
    if b"mallocx" not in installed.resolve().read_bytes():
        return installed
    shown = subprocess.run([installed, "--version"], check=True, capture_output=True, text=True).stdout
    version = next(word[2:] for word in shown.split() if word.startswith("v="))
    program = CACHE / version / "redis-server"
    if program.exists():
        return program
    copy = CACHE / f".building-{version}-{os.getpid()}"
    copy.mkdir(parents=True)
    try:
        debian_source.upstream("redis", copy)
        make = ["make", f"-j{os.cpu_count()}", "MALLOC=libc", "BUILD_TLS=no", "USE_SYSTEMD=no"]
        debian_source.quietly(make, copy)
        program.parent.mkdir(parents=True, exist_ok=True)
        (copy / "src/redis-server").rename(program)
    except (OSError, AssertionError) as error:
        raise BenchError(f"Redis {version} without jemalloc does not build: {error}") from error
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return program
