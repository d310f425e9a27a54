"""Instances whose runtime cannot share pages, paged out to the host's swap while idle: a container image of
Node.js with AWS' own client, and swap in compressed memory. And the equal pages of two such processes."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench.merge.machine import MIB, PAGE, memory_of
from bench.outcome import ROOT, BenchError
from bench.worker.page_contents import read_pages, runtimes
from bench.worker.worker import Worker, running

sys.path.append(str(ROOT / "worker" / "tests"))
from images import Image, layer, root_of  # noqa: E402
from zram import compressed_swap, missing  # noqa: E402

AFTER_S = 1
# How two processes of Node.js are started: unchanged, without ASLR and with the same seeds, and with no
# thread beside their JavaScript.
SAME = ["--hash-seed=7", "--random-seed=7"]
WAYS = {
    "plain": ["node"],
    "fixed": ["setarch", "-R", "node", *SAME],
    "alone": ["setarch", "-R", "node", *SAME, "--single-threaded"],
}
PROGRAM = """
const times = Number(process.argv[1]);
for (let time = 0; time < times; time++) {
  const items = Array.from({length: 3000}, (_, id) => ({id, name: `item ${id}`, tags: ['a', `b${id % 7}`]}));
  JSON.stringify(JSON.parse(JSON.stringify(items)).filter(item => item.id % (time + 2) == 0));
}
setInterval(() => {}, 1e6);
console.log('ready');
"""
TEMPLATE = """
Resources:
  Schema:
    Type: AWS::Serverless::Function
    Metadata: {{ Mayfly: {{ {after} }} }}
    Properties:
      {{ FunctionName: schema, PackageType: Image, ImageUri: "{image}", MemorySize: 256, Timeout: 60 }}
"""
SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
ENTRY = ["/usr/bin/node", "node_modules/aws-lambda-ric/index.mjs"]
OPTIONS = ("--burst", "4", "--keep-alive", "3600", "--queue-wait", "300", "--memory", str(64 << 10))


def page_out(count: int, rounds: int) -> dict[str, float]:
    """`count` resident instances and `count` paged out, one worker after the other: MiB of each, with its
    part of the swap, and the first answer after a pause."""
    if reason := missing():
        raise BenchError(reason)
    root, numbers = root_of(ROOT / "functions" / "schema"), {}
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as place:
        whole = layer(*((path.name, path) for path in sorted(root.iterdir())))
        image = Image(whole, Entrypoint=ENTRY, Cmd=["app.handler"], WorkingDir="/var/task")
        uri = image.archive(Path(place) / "schema.tar")
        for name, after in {"stay": "", "go": f"PageOutAfter: {AFTER_S}"}.items():
            template = Path(place) / f"{name}.yaml"
            template.write_text(TEMPLATE.format(after=after, image=uri))
            with compressed_swap() as swap, running(*OPTIONS, template=template) as worker:
                found = measure(worker, swap, count, rounds)
            numbers |= {f"{name}.{key}": value for key, value in found.items()}
    return numbers


def measure(worker: Worker, swap: Path, count: int, rounds: int) -> dict[str, float]:
    worker.limit_instances("schema", count)
    for _ in range(20):
        many(worker, 2 * count)
        if len(worker.instances("schema")) == count:
            break
    else:
        raise BenchError(f"{count} instances of schema did not start")
    first: list[float] = []
    for _ in range(rounds):
        time.sleep(AFTER_S + 3)
        processes = runtimes(worker, "schema")
        memory = memory_of(processes)
        in_swap_mib = int((swap / "mm_stat").read_text().split()[2]) / MIB
        first.append(ask(worker, 0))
        many(worker, 4 * count)
    return {
        "instances": len(processes),
        "each_mib": (memory["pss"] + in_swap_mib) / count,
        "private_mib": memory["anonymous"] / count,
        "swap_mib": in_swap_mib / count,
        "first_ms": median(first),
    }


def many(worker: Worker, number: int) -> None:
    with ThreadPoolExecutor(number) as pool:
        list(pool.map(lambda seed: ask(worker, seed), range(number)))


def ask(worker: Worker, seed: int) -> float:
    begun = time.monotonic()
    body = json.dumps({"schema": SCHEMA, "document": {"name": str(seed)}})
    worker.ask("POST", "/2015-03-31/functions/schema/invocations", body)
    return 1000 * (time.monotonic() - begun)


def alike(way: str) -> dict[str, float]:
    """Two processes of Node.js with the same work, one of them once more: a process's private MiB, and how
    much of that the other has as well, if some program could find it."""
    processes = [
        subprocess.Popen([*WAYS[way], "-e", PROGRAM, str(times)], stdout=subprocess.PIPE, text=True)
        for times in (5, 6)
    ]
    try:
        for process in processes:
            if process.stdout.readline() != "ready\n":
                raise BenchError("node does not run")
        time.sleep(1)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        one, other = (read_pages(process.pid).own for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    there = {page.digest for page in other.values()}
    of_both = sum(page.digest in there for page in one.values())
    return {"private_mib": len(one) * PAGE / MIB, "alike_mib": of_both * PAGE / MIB}
