#!/usr/bin/env bash
# One more character in an argument moves most objects of a Python process, also without ASLR and with a fixed hash seed.
#
# Two processes of one program are alike page by page, at the same addresses, if their layout and hash seed are the same and they
# do the same. Python makes a string object of each argument, 49 bytes and its characters, in steps of 16. Of 15 characters it
# has 64 bytes, of 16 it has 80, so every later object of these sizes takes another free place than in its neighbour, and what
# points at it differs. Workers that are to share pages by content need arguments of equal length (worker-socket-09) or their
# number by another way, such as a file. Within a step of 16 nothing moves, so it can be missed in a test of two workers.
#
# Python 3.11.2 of Debian 12 (python3-minimal 3.11.2-1+b1), Linux 6.18, setarch of util-linux 2.38.1.
#
# Seen, of 4,057 pages without a file:
#   worker-socket-1 and worker-socket-9: 99% of pages are equal
#   worker-socket-9 and worker-socket-10: 17% of pages are equal
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/worker" <<'PYTHON'
import sys
table = {f"key {i}": (i, str(i) * 2) for i in range(60_000)}
print("ready", flush=True)
sys.stdin.read()
PYTHON
cat >"$folder/compare" <<'PYTHON'
import subprocess, sys

def pages(process):
    """The contents of each page that has no file, by address."""
    found = {}
    with open(f"/proc/{process.pid}/maps") as maps, open(f"/proc/{process.pid}/mem", "rb") as memory:
        for line in maps:
            where, rights, _, _, inode, *name = line.split()
            start, end = (int(part, 16) for part in where.split("-"))
            if rights.startswith("rw") and inode == "0" and name != ["[stack]"]:
                memory.seek(start)
                contents = memory.read(end - start)
                found |= {start + at: contents[at : at + 4096] for at in range(0, len(contents), 4096)}
    return {at: page for at, page in found.items() if any(page)}

def worker(name):
    command = ["setarch", "-R", "env", "-i", "PYTHONHASHSEED=0", "/usr/bin/python3", "-s", "worker", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    seen = pages(process)
    process.communicate()
    return seen

names = sys.argv[1:]
one, other = map(worker, names)
equal = sum(other.get(at) == page for at, page in one.items())
print(f"{names[0]} and {names[1]}: {100 * equal // len(one)}% of pages are equal")
PYTHON
cd "$folder"
alike=$(python3 compare worker-socket-1 worker-socket-9)
differ=$(python3 compare worker-socket-9 worker-socket-10)
printf '%s\n' "$alike" "$differ"
share() { grep -oE '[0-9]+%' <<<"$1" | tr -d %; }
[ "$(share "$alike")" -ge 90 ] || { echo "changed: equal lengths"; exit 1; }
[ "$(share "$differ")" -le 70 ] || { echo "changed: other lengths"; exit 1; }
