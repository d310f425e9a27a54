"""advise_process and tables of addresses in libraries, which the loader fills in: equal in processes of one
layout, private in each without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNT = 1 << 15  # addresses, 256 KiB
SAME_LAYOUT = ["setarch", "--addr-no-randomize"]

PROGRAM = f"""
import ctypes, _ctypes, sys
import mayfly
from mayfly.growth import relocated

own = ctypes.CDLL(sys.argv[1])
table = (ctypes.c_void_p * {COUNT}).in_dll(own, "table")
middle = ctypes.addressof(table) + {COUNT * 4}

def mapping(at):
    for line in open("/proc/self/maps"):
        where, permissions, offset, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in where.split("-"))
        if start <= at < end:
            return permissions, int(offset, 16) + at - start, inode, *name

assert own.sum() == {COUNT * (COUNT - 1) // 2}
(run,) = [run for run in relocated() if run.start <= middle < run.end]
assert {COUNT * 8} - 8192 <= run.size_bytes < {COUNT * 8} + 65536, run
assert mapping(middle)[0] == "r--p" and sys.argv[1] in mapping(middle)[-1]
mayfly.advise_process()
assert own.sum() == {COUNT * (COUNT - 1) // 2}
assert not [run for run in relocated() if run.start <= middle < run.end], "it is the process's own still"
print(*mapping(middle), flush=True)
sys.stdin.read()
assert own.sum() == {COUNT * (COUNT - 1) // 2}
_ctypes.dlclose(own._handle)
assert mapping(middle) is None, "the library's memory is there still"
"""


@pytest.fixture
def library(tmp_path):
    """A library with a table of addresses, and a function that reads what they point to."""
    source, library = tmp_path / "own.c", tmp_path / "libown.so"
    source.write_text(f"""
int numbers[{COUNT}];
int *const table[] = {{{",".join(f"numbers + {number}" for number in range(COUNT))}}};
__attribute__((constructor)) static void fill(void) {{ for (int i = 0; i < {COUNT}; i++) numbers[i] = i; }}
int sum(void) {{ int all = 0; for (int i = 0; i < {COUNT}; i++) all += *table[i]; return all; }}
""")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,relro", "-o", library, source], check=True)
    return library


def test_two_processes_share_the_tables_of_a_library(store, library):
    if subprocess.run([*SAME_LAYOUT, "true"], capture_output=True).returncode:
        pytest.skip("this system does not permit one layout (personality)")
    environment = os.environ | store | {"PYTHONPATH": str(ROOT / "python"), "PYTHONHASHSEED": "0"}
    command = [*SAME_LAYOUT, sys.executable, "-c", PROGRAM, library]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    programs = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(2)]
    try:
        found = [program.stdout.readline().split() for program in programs]
        for program in programs:
            _, errors = program.communicate("", timeout=120)
            assert program.returncode == 0, errors
    finally:
        for program in programs:
            program.kill()
            program.wait()
    one, other = found
    assert one == other, "two places in the store, or none"
    assert one[0] == "r--p" and one[3].startswith("/memfd:mayfly-pages")
