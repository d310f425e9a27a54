"""An allocation-heavy Python program: trees, records, JSON, strings, sorting. Run with PYTHONMALLOC=malloc.

objects.py [ROUNDS]      prints its time and memory as one JSON line
"""

import json
import os
import random
import sys
import time


def tree(depth):
    return (tree(depth - 1), tree(depth - 1)) if depth else (None, None)


def count(node):
    return 1 + sum(count(child) for child in node if child)


def records(number, random):
    return [
        {
            "id": i,
            "name": f"user-{i:07}",
            "tags": [str(random.randrange(1000)) for _ in range(5)],
            "score": random.random(),
        }
        for i in range(number)
    ]


def words(text):
    found = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
    return found


def kib(path, name):
    with open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), 0)


def memory_now():
    """Has the bench measure the memory at this moment (bench/heap/moments.py)."""
    if descriptors := os.environ.get("BENCH_MOMENTS"):
        asks, answered = map(int, descriptors.split(","))
        os.write(asks, b"\n")
        assert os.read(answered, 1)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    numbers = random.Random(7)
    kept = []  # a little of every round stays, as a cache would
    start = time.process_time()
    for each in range(rounds):
        assert count(tree(16)) == 2**17 - 1
        table = records(30000, numbers)
        text = json.dumps(table)
        again = json.loads(text)
        assert again == table, "a record came back changed"
        assert sum(words(text).values()) == text.count(" ") + 1
        again.sort(key=lambda record: (record["tags"], -record["score"]))
        lines = [",".join(map(str, record.values())) for record in again]
        assert len("\n".join(lines).splitlines()) == 30000
        kept.append(again[:: 100 + each])
    time_ms = (time.process_time() - start) * 1000
    del table, text, again, lines
    memory_now()
    print(json.dumps({"time_ms": time_ms, "peak_rss_kib": kib("/proc/self/status", "VmHWM:")}))


main()
