"""Contents of instances' pages: how many pages of a starting instance its function's page store already has,
and which pages an instance at rest does not share. Root reads them by /proc/PID/pagemap and mem."""

import hashlib
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy

from bench.compiled import compiled
from bench.merge.environment import python_of_servers
from bench.merge.machine import MIB, PAGE
from bench.outcome import BenchError
from bench.processes import ask
from bench.worker.experiments import VARIANTS
from bench.worker.worker import Worker, below, running

HERE = Path(__file__).parent
NOOP = HERE / "noop"
PRESENT, OF_FILE = numpy.uint64(1 << 63), numpy.uint64(1 << 61)
ZERO = hashlib.blake2b(bytes(PAGE), digest_size=16).digest()
STORE = "/memfd:mayfly-pages"
OPTIONS = ("--burst", "4", "--keep-alive", "3600", "--queue-wait", "300", "--memory", str(64 << 10))
Numbers = dict[str, float]


class Page(NamedTuple):
    kind: str
    digest: bytes


class ProcessPages(NamedTuple):
    """Pages of a process by address: its own, and those of the store that it maps."""

    own: dict[int, Page]
    store: dict[int, bytes]
    files: list[str]


def read_pages(process: int) -> ProcessPages:
    """All pages of a stopped or frozen process, without pages of zeros."""
    pages = ProcessPages({}, {}, [])
    maps = Path(f"/proc/{process}/maps").read_text()
    with (
        open(f"/proc/{process}/pagemap", "rb", 0) as pagemap,
        open(f"/proc/{process}/mem", "rb", 0) as memory,
    ):
        for line in maps.splitlines():
            words = line.split(maxsplit=5)
            name = words[5] if len(words) > 5 else ""
            if name.startswith("[v") or words[1][0] != "r":
                continue
            if name.startswith("/") and not name.startswith("/memfd:") and name not in pages.files:
                pages.files.append(name)
            first, end = (int(part, 16) for part in words[0].split("-"))
            pagemap.seek(first // PAGE * 8)
            entries = numpy.frombuffer(pagemap.read((end - first) // PAGE * 8), "<u8")
            own = (entries & (PRESENT | OF_FILE)) == PRESENT
            of_store = name.startswith(STORE)
            for index in numpy.flatnonzero(own | ((entries & PRESENT) != 0) & of_store):
                address = first + int(index) * PAGE
                memory.seek(address)
                digest = hashlib.blake2b(memory.read(PAGE), digest_size=16).digest()
                if not own[index]:
                    pages.store[address] = digest
                elif digest != ZERO:
                    pages.own[address] = Page(kind_of(name), digest)
    return pages


def kind_of(name: str) -> str:
    if name.startswith(STORE):
        return "merged_before"
    if name.startswith("/"):
        return "of_files"
    return "stack" if name == "[stack]" else "anonymous"


def runtimes(worker: Worker, function: str) -> list[int]:
    """The processes that run a function, the oldest first."""
    wanted = f"AWS_LAMBDA_FUNCTION_NAME={function}".encode()
    found = []
    for process in below(worker.process.pid):
        try:
            if wanted in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                found.append(process)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def private(functions: tuple[str, ...], count: int) -> Numbers:
    """`count` instances of each function at rest: private MiB of an instance, by kind; how many of them
    another instance of the function has as well; and how much of the store no process maps."""
    totals: Counter[str] = Counter()
    with running(*OPTIONS) as worker:
        for function in functions:
            worker.start_instances(function, count)
        worker.wait_for_rest()
        time.sleep(2)  # a sample of the store is a second old at most
        stored = worker.store_bytes()
        mapped: set[tuple[str, bytes]] = set()
        for function in functions:
            processes = runtimes(worker, function)
            if len(processes) != count:
                raise BenchError(f"{function}: {len(processes)} processes, and not {count}")
            of_processes = [read_pages(process) for process in processes]
            times = Counter(
                digest for pages in of_processes for digest in {page.digest for page in pages.own.values()}
            )
            in_store = {digest for pages in of_processes for digest in pages.store.values()}
            mapped |= {(function, digest) for digest in in_store}
            for pages in of_processes:
                totals["instances"] += 1
                for page in pages.own.values():
                    totals[page.kind] += PAGE
                    totals[f"{page.kind}.elsewhere"] += PAGE * (times[page.digest] > 1)
                    totals[f"{page.kind}.in_store"] += PAGE * (page.digest in in_store)
        number = totals.pop("instances")
        flat = {f"{name}_mib": bytes_ / number / MIB for name, bytes_ in totals.items()}
        return flat | {
            "store_mib": stored / number / MIB,
            "unmapped_mib": (stored - len(mapped) * PAGE) / number / MIB,
        }


def state(function: str) -> Numbers:
    """Pages that an instance has written when it asks for its first work, while two others of its function
    are at rest: how many of them the store has, and how many at the same address. And the kernel's time for
    such pages, written or mapped."""
    template = {"template": NOOP / "template.yaml"} if function == "noop" else {}
    with running(*VARIANTS["started"], *OPTIONS, **template) as worker:
        worker.start_instances(function, 2)
        worker.wait_for_rest()
        before = runtimes(worker, function)
        rested = [read_pages(process) for process in before]
        worker.limit_instances(function, 3)
        for _attempt in range(50):
            # One more request than instances starts another, and most often an earlier instance answers it
            # before that is ready.
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda number: worker.invoke(function, number), range(3)))
            if fresh := [process for process in runtimes(worker, function) if process not in before]:
                break
        else:
            raise BenchError(f"{function}: no third instance started")
        while len(worker.read("/instances")["instances"]) < 3 or any(
            one["phase"] == "starting" for one in worker.instances(function)
        ):
            time.sleep(0.01)
        time.sleep(0.2)  # it is frozen, and without work rests 5 s after its start
        process = fresh[0]
        pages = read_pages(process)
        faults = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[7])
        ready = [event["ms"] for event in worker.read("/events")["events"] if event["kind"] == "ready"]
        libraries = [name for name in pages.files if ".so" in name]
        loading = load_ms(process, libraries)
    at_same = {address: digest for one in rested for address, digest in one.store.items()}
    stored = set(at_same.values())
    own = pages.own
    flat = {
        "start_ms": ready[-1],
        "faults": faults,
        "written_pages": len(own),
        "in_store_pages": sum(page.digest in stored for page in own.values()),
        "same_place_pages": sum(at_same.get(address) == page.digest for address, page in own.items()),
        "of_files_pages": sum(page.kind == "of_files" for page in own.values()),
        "libraries": len(libraries),
        "loading_ms": loading,
    } | costs()
    touch_ms = flat["first_touch_ns"] / 1e6
    return flat | {
        "faults_ms": faults * touch_ms,
        "spared_at_most_ms": flat["same_place_pages"] * (touch_ms - flat["populated_ns"] / 1e6),
        "costs_if_written_ms": flat["same_place_pages"]
        * (flat["populated_ns"] + flat["copy_ns"] - flat["first_touch_ns"])
        / 1e6,
    }


def load_ms(process: int, libraries: list[str]) -> float:
    """Milliseconds to load these libraries once more: mapping, relocation, initialisers."""
    paths = [f"/proc/{process}/root{name}" for name in libraries]
    program = """
import ctypes, json, sys, time
begun = time.process_time()
for path in json.loads(sys.argv[1]):
    try:
        ctypes.CDLL(path)
    except OSError:
        pass
print(1000 * (time.process_time() - begun))
"""
    return min(
        float(ask([python_of_servers(), "-c", program, json.dumps(paths)], "loading")) for _ in range(5)
    )


def costs() -> Numbers:
    """Nanoseconds a page: a first write; populated 16 at a time; a store's page, mapped with many others; a
    write to that."""
    touch = compiled("worker-touch", ["gcc", "-O2", "-Wall", "-Wextra"], HERE / "touch.c")
    names = ("first_touch_ns", "ahead_ns", "populated_ns", "copy_ns")
    return dict(zip(names, map(float, ask([touch], touch.name).split()), strict=True))
