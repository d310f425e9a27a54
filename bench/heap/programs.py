"""Real programs besides Redis: memcached under a load, a C++ compile, an allocation-heavy Python program."""

import json
import os
import subprocess
import time
from pathlib import Path

from bench.compiled import BUILD
from bench.heap import build
from bench.heap.allocators import Allocator
from bench.heap.machine import maps_name
from bench.heap.measure import Numbers, run, run_reporting
from bench.heap.server import scratch_folder, serving, tool
from bench.outcome import BenchError

# Those of C++17's that cost a compiler the most.
HEADERS = ["algorithm", "any", "charconv", "chrono", "complex", "deque", "filesystem", "functional", "future"]
HEADERS += [
    "iomanip",
    "iostream",
    "iterator",
    "list",
    "locale",
    "map",
    "memory",
    "mutex",
    "numeric",
    "optional",
]
HEADERS += [
    "queue",
    "random",
    "regex",
    "set",
    "shared_mutex",
    "sstream",
    "string",
    "string_view",
    "thread",
    "tuple",
]
HEADERS += ["unordered_map", "unordered_set", "utility", "valarray", "variant", "vector"]


def memcached(allocator: Allocator, requests: int) -> Numbers:
    load = build.program("memcached_load")
    command = [tool("memcached"), "-s", "{socket}", "-m", "512", "-t", "2", "-c", "4096"]
    if os.geteuid() == 0:
        command += ["-u", "root"]
    with scratch_folder() as folder, serving(allocator, command, folder) as server:
        done = subprocess.run(
            [load, server.socket_path, str(requests)], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise BenchError(f"memcached_load: {done.stderr.strip()}")
        numbers = json.loads(done.stdout)
        time.sleep(0.2)
        return numbers | server.memory() | server.peaks()


def compile_cpp(allocator: Allocator, instances: int) -> Numbers:
    """g++ -O1 on generated code: every header of the standard library, and templates at many types."""
    source = write_source(instances)
    compiler_seen = []

    def watch(pid: int) -> None:
        # The memory is used by cc1plus, g++'s child: it must have got the allocator too.
        if compiler_seen:
            return
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return
        for child in map(int, children):
            try:
                name = Path(f"/proc/{child}/comm").read_text().strip()
            except OSError:
                continue
            if name == "cc1plus" and maps_name(child, allocator.library):
                compiler_seen.append(child)

    output = source.with_suffix(f".{allocator.key}.s")
    command = [tool("g++"), "-std=c++17", "-O1", "-S", "-o", output, source]
    _, cost = run(allocator, command, watch=watch, extra={"LC_ALL": "C"})
    if not compiler_seen:
        raise BenchError(f"cc1plus did not have {allocator.library} loaded")
    # The same source must give the same code, whatever the allocator.
    text = output.read_bytes()
    output.unlink()
    reference = source.with_suffix(f".{instances}.s")
    if not reference.exists():
        reference.write_bytes(text)
    elif reference.read_bytes() != text:
        raise BenchError("g++ made other code than it made on another allocator")
    # One thread: its processor time equals the wall clock, without the rest of the machine's load.
    return {"time_ms": cost["cpu_ms"], "wall_ms": cost["wall_ms"], "peak_rss_kib": cost["peak_rss_kib"]}


TEMPLATE = """
struct Record$ { std::string name; int key[$]; std::vector<Tag<$>> tags; };
std::size_t use$(std::unordered_map<std::string, Record$> &records) {
  std::vector<std::pair<std::string, int>> order;
  for (auto &[name, record] : records) order.emplace_back(name, record.key[$ - 1]);
  std::sort(order.begin(), order.end(), [](auto &a, auto &b) { return a.second * $ < b.second; });
  std::function<int(int)> step = [&](int i) { return i ? step(i - 1) + $ : 0; };
  std::variant<int, std::string, Record$> one = order.empty() ? 0 : step($);
  records[std::to_string($)].tags.resize(one.index() + $);
  return order.size() + one.index();
}"""


def write_source(instances: int) -> Path:
    lines = [f"#include <{header}>" for header in HEADERS]
    lines.append("template <int N> struct Tag { std::map<int, std::array<char, N>> table; };")
    lines += [TEMPLATE.replace("$", str(n)) for n in range(1, instances + 1)]
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"generated-{instances}.cc"
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.with_suffix(f".{instances}.s").unlink(missing_ok=True)
    return path


def python(allocator: Allocator, rounds: int) -> Numbers:
    interpreter = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else tool("python3")
    script = Path(__file__).parent / "workloads" / "objects.py"
    return run_reporting(allocator, [interpreter, "-I", script, rounds], extra={"PYTHONMALLOC": "malloc"})
