"""Each program in heap/tests/programs tests one part of the malloc interface; its first lines say which.

It fails by exiting non-zero, by a signal, or by taking too long. `variants:` are started one by one below.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path

import pytest
from preloaded import BUILD, SOURCES, build, directives, libraries, source

PLAIN = sorted(p.stem for p in SOURCES.glob("*.c*") if "variants" not in directives(p.stem))
SETTINGS, REFUSED = (directives("model")[key].split() for key in ("settings", "refused"))
THREADS = """import threading as t; ts = [t.Thread(target=lambda: bytearray(10**7)) for _ in range(8)]
[x.start() for x in ts]; [x.join() for x in ts]; print('well')"""
ORDINARY = {  # must run under RLIMIT_AS of 1 GiB, and the first three of 200 MB
    "sort": ["sort", "--parallel=2", "/proc/self/maps"],
    "bash": ["bash", "-c", "x=; for i in {1..20000}; do x=$x$i; done; echo ${#x}"],
    "json": [
        sys.executable,
        "-c",
        "import json; print(len(json.dumps([{str(i): i} for i in range(10**5)])))",
    ],
    "g++": ["g++", "-O1", "-x", "c++", "-c", "-o", "/dev/null", SOURCES / "pmr_containers.cc"],
    "threads": [sys.executable, "-c", THREADS],
}


@pytest.mark.parametrize("name", PLAIN)
def test_program(heap, pytestconfig, name):
    words, option = directives(name), pytestconfig.option
    arguments = words.get("arguments", "")
    late = "{lib}" in arguments  # a library that the program opens must not also be preloaded
    if late and not heap.library:
        pytest.skip("needs a library")
    arguments = arguments.format_map(vars(option) | {"lib": heap.library}).split()
    arguments += [file for needed in words.get("needs", "").split() for file in libraries(needed)]
    timeout = int(words.get("timeout", 300)) + option.seconds + option.fuzz_seconds
    out, _ = heap.run([build(name), *arguments], timeout, heap.environment(None) if late else None)
    print(out)
    if words.get("stdout") == "xml":
        xml.dom.minidom.parseString(out)


@pytest.mark.parametrize("setting", SETTINGS + REFUSED)
def test_setting(heap, setting):
    """The model and large objects of many threads; the heap logs one line for each refused setting."""
    heap.ours()
    if heap.spans:
        pytest.skip("with --spans, which is a setting, too")
    name, value = setting.split("=")
    models = [("model", 1), ("model", 3)] if os.environ.get("MAYFLY_SOAK") else [("model", 3)]
    for program, *arguments in (*models, ("large_objects",)):
        environment = heap.environment(**{f"MAYFLY_HEAP_{name}": value})
        _, err = heap.run([build(program), *arguments], environment=environment)
        assert len(re.findall("^mayfly-heap:", err, re.M)) == (setting in REFUSED), err


def test_maintenance_thread_off(heap):
    heap.ours()
    heap.run([build("maintenance_thread"), "off"], environment=heap.environment(MAYFLY_HEAP_THREAD="off"))


def test_realloc_contents_of_lines(heap):
    heap.run([build("realloc_contents")], environment=heap.environment(MAYFLY_HEAP_SPANS="lines"))


@pytest.mark.parametrize("limit", directives("limits")["variants"].split())
def test_limit(heap, limit):
    heap.run([build("limits"), *limit.split("-")])


@pytest.mark.parametrize(
    "name, limit", [*((n, 1 << 30) for n in ORDINARY), *((n, 200 * 10**6) for n in [*ORDINARY][:3])]
)
def test_ordinary_program_with_limit(heap, name, limit):
    command = ORDINARY[name]
    out, _ = heap.run(command, limit=limit)
    if name != "sort":  # whose input is another one in each process
        assert out == subprocess.run(command, capture_output=True, text=True, cwd=BUILD).stdout


def test_cgroup(heap):
    """In a memory cgroup of its own, of which live objects fill nearly nine tenths."""
    target = build("cgroup_limit")
    with memory_cgroup(160 << 20) as folder:
        out, _ = heap.run([target, 142], 120, in_child=lambda: (folder / "cgroup.procs").write_text("0"))
    print(out)


@contextlib.contextmanager
def memory_cgroup(limit):
    """A memory cgroup below this process's own, with a limit in bytes, of version 1 or 2."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    root, file = Path("/sys/fs/cgroup"), "memory.max"
    own = next((own for _, controllers, own in lines if not controllers), "/")
    if first := [own for _, controllers, own in lines if "memory" in controllers.split(",")]:
        root, own, file = root / "memory", first[0], "memory.limit_in_bytes"
    # A container sees its own cgroup at the root, and the path that the kernel reports may not exist there.
    parent = next((p for p in [root / own.lstrip("/"), root] if (p / "cgroup.procs").exists()), None)
    if parent is None:
        pytest.skip("no memory cgroups here")
    folder = parent / f"mayfly-heap-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error.strerror}")
    try:
        if not (folder / file).exists():
            pytest.skip("the memory controller is not handed down to new cgroups")
        (folder / file).write_text(str(limit))
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.only_with("overcommit")
def test_overcommit(heap):
    """Memory that is only reserved must not count. Changes a setting of the whole machine for two seconds."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    targets = [build("zero_and_overflow"), build("calloc_zeroed")]
    proc = Path("/proc/sys/vm")
    memory, ratio, kbytes = (proc / f"overcommit_{name}" for name in ("memory", "ratio", "kbytes"))
    # Of the last two, the one that is not 0 counts, and a write to it makes the other 0.
    counts = kbytes if int(kbytes.read_text()) else ratio
    before = [(file, file.read_text()) for file in (memory, counts)]
    committed = int(re.search(r"Committed_AS:\s+(\d+)", Path("/proc/meminfo").read_text())[1])
    try:
        kbytes.write_text(str(committed + (8 << 20)))
        memory.write_text("2")
        for target in targets:
            heap.run([target], 20)
    finally:
        for file, value in before:
            file.write_text(value)


@pytest.mark.only_with("libfuzzer")
def test_libfuzzer(heap, pytestconfig):
    """With clang's libFuzzer, which follows coverage of the target, but not of the heap."""
    if not shutil.which("clang++"):
        pytest.skip("needs clang++ (Debian: clang)")
    seconds, corpus = pytestconfig.option.libfuzzer, BUILD / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    target = BUILD / "fuzz_with_libfuzzer"
    flags = "-O1 -g -std=c++17 -fno-builtin -DWITH_LIBFUZZER -fsanitize=fuzzer"
    subprocess.run(["clang++", *flags.split(), "-o", target, source("fuzz_interface")], check=True)
    options = f"-max_total_time={seconds} -max_len=4096 -rss_limit_mb=4096 -print_final_stats=1"
    heap.run([target, *options.split(), corpus], seconds + 300)
