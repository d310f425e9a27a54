"""The units in which allocators are compared (bench/memory.py), on a process whose layout is known."""

import mmap
import os
import subprocess

import pytest

from bench import memory
from bench.heap.machine import thp_setting

PAGE, RANGE = memory.PAGE, memory.RANGE
# The code of a step, the C library's and its data are some pages; a fault maps 16 of a file that are there.
TOLERATED = {"resident": 8 * PAGE, "ranges": 0, "huge": 0, "files": 160 * PAGE}
# It changes its memory step by step: for each line that it reads it takes a step, and writes one.
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
enum { PAGE = 4096, RANGE = 2 << 20 };
static char own_data[5 << 20];
static char line[64];
static void step(void) {
    printf("\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) _exit(1);
}
static void deep(void) {
    volatile char frame[1 << 20];
    for (int i = 0; i < (int)sizeof frame; i += PAGE) frame[i] = 1;
}
static void *wait_on_a_stack(void *name) {
    deep();
    pause();
    return name;
}
static char *map(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *at = mmap(0, bytes + RANGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    return (char *)(((size_t)at + RANGE - 1) & ~(size_t)(RANGE - 1));
}
int main(int count, char **names) {
    pthread_t thread;
    char *sparse = map(64UL << 30), *small = map(4 * RANGE);
    char *huge = map(3 * RANGE), *read_only = map(4 * RANGE);
    madvise(sparse, 64UL << 30, MADV_NOHUGEPAGE);
    madvise(small, 4 * RANGE, MADV_NOHUGEPAGE);
    madvise(read_only, 4 * RANGE, MADV_NOHUGEPAGE);
    madvise(huge, 3 * RANGE, MADV_HUGEPAGE);
    step();
    for (size_t i = 0; i < 5; i++) sparse[i * (13UL << 30)] = 1; // a page in each of five ranges
    sparse[PAGE] = 1; // another in the first of them
    step();
    memset(small + PAGE, 1, RANGE); // from the second page of a range to the first of the next
    step();
    memset(huge + RANGE, 1, RANGE);
    step();
    for (int i = 0; i < 4 * RANGE; i += PAGE) (void)*(volatile char *)(read_only + i);
    step();
    memset(own_data, 1, sizeof own_data);
    step();
    pthread_create(&thread, 0, wait_on_a_stack, names);
    sleep(1);
    step();
    int file = open(names[count - 1], O_RDONLY);
    char *of_file = mmap(0, 3 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0), all = 0;
    for (int i = 0; i < 3 << 20; i += PAGE) all += of_file[i];
    if (all == 77) return 1;
    step();
    madvise(small, 4 * RANGE, MADV_DONTNEED);
    step();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(PROGRAM)
    (folder / "file").write_bytes(b"\1" * (4 << 20))
    command = ["gcc", "-O1", "-pthread", "-o", folder / "layout", folder / "layout.c"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(params=["scanned", "read"])
def way(request, monkeypatch):
    """PAGEMAP_SCAN, and what kernels before it have."""
    if request.param == "read":

        def refused(*_):
            raise OSError

        monkeypatch.setattr(memory, "scanned", refused)
    elif memory.kernel() < (6, 7):
        pytest.skip("Linux before 6.7 has no PAGEMAP_SCAN")
    return request.param


def test_each_step_changes_both_units(program, way):
    if thp_setting() not in ("always", "madvise"):
        pytest.skip(f"transparent huge pages: {thp_setting()}")
    # Zeros that were only read are no memory; a word in pagemap cannot tell them from others.
    zeros = (0, 0, 0, 0) if way == "scanned" else None
    steps = {
        "a page in each of five ranges": (6 * PAGE, 5 * RANGE, 0, 0),
        "small pages across a border": (RANGE, 2 * RANGE, 0, 0),
        "a huge page": (RANGE, RANGE, RANGE, 0),
        "zeros, only read": zeros,
        "the program's own data": (0, 0, 0, 0),
        "a thread's stack": (0, 0, 0, 0),
        "a file": (0, 0, 0, 3 << 20),
        "pages given back": (-RANGE, -2 * RANGE, 0, 0),
    }
    command = [program / "layout", program / "file"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()
            before = memory.of(process.pid)
            for name, wanted in steps.items():
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
                now = memory.of(process.pid)
                found = tuple(getattr(now, key) - getattr(before, key) for key in TOLERATED)
                differences = zip(found, wanted or found, TOLERATED.values(), strict=True)
                close = all(abs(one - other) <= most for one, other, most in differences)
                assert close, f"{name}: {found}, not {wanted}"
                before = now
        finally:
            process.kill()


def test_the_parts_of_this_process_fit_together():
    now = memory.of(os.getpid())
    assert PAGE < now.resident <= now.ranges
    assert now.huge <= now.resident < now.rss
    assert 0 < now.files < now.rss


def test_parts_of_a_mapping_count_once_each(way):
    """More parts than one call of PAGEMAP_SCAN returns, or the kernel gathers at a time."""
    pages = 3 * memory.REGIONS
    with mmap.mmap(-1, 2 * pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.madvise(mmap.MADV_NOHUGEPAGE)
        before = memory.of(os.getpid()).resident
        for page in range(0, 2 * pages, 2):
            area[page * PAGE] = 1
        added = memory.of(os.getpid()).resident - before
    assert abs(added - pages * PAGE) <= 64 * PAGE
