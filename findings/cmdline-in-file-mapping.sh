#!/usr/bin/env bash
# Linux shows no command line of a process whose arguments lie in a private mapping of a file, although it may read them and
# /proc/PID/mem has them: /proc/PID/cmdline is empty, also once the process has written to the page, which then is its own.
# `ps` shows the name in brackets, as of a kernel thread. A program that lays processes out from files (checkpoints, snapshots)
# needs anonymous memory for these pages.
#
# Linux 6.18 and 7.3, Python 3.11 of Debian 12 (python3-minimal 3.11.2-1+b1) and procps 4.0.2. The kernel reads both
# /proc/PID/cmdline and /proc/PID/environ with FOLL_ANON, which passes by mappings that have a file.
#
# Seen:
#   before: python3 words
#   mapped from a file: nothing, in memory: python3 words
#   written to: nothing, ps: [python3]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program" <<'PYTHON'
import ctypes, mmap, os, subprocess, threading
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
MAP_FIXED = 0x10
fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
page = start & -mmap.PAGESIZE
size = (end + mmap.PAGESIZE - 1 & -mmap.PAGESIZE) - page

def memory(at, length):
    with open("/proc/self/mem", "rb") as file:
        file.seek(at)
        return file.read(length)

def words(text):
    return " ".join(word.decode() for word in text.split(b"\0")[:-1]) or "nothing"

def command_line():
    return words(open("/proc/self/cmdline", "rb").read())

def show():
    print("before:", command_line())
    file = os.memfd_create("words")
    os.write(file, memory(page, size))
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    assert libc.mmap(page, size, rights, mmap.MAP_PRIVATE | MAP_FIXED, file, 0) == page
    print(f"mapped from a file: {command_line()}, in memory: {words(memory(start, end - start))}")
    byte = ctypes.c_char.from_address(start)
    byte.value = byte.value
    ps = subprocess.run(["ps", "-o", "args=", "-p", str(os.getpid())], capture_output=True, text=True).stdout
    print(f"written to: {command_line()}, ps: {ps.strip()}")

# The main thread, on whose stack they lie, waits meanwhile.
thread = threading.Thread(target=show)
thread.start()
thread.join()
PYTHON
cd "$folder"
seen=$( (exec -a python3 /usr/bin/python3 program words) | sed 's/python3 program words/python3 words/; s/\[python3[0-9.]*\]/[python3]/')
echo "$seen"
[ "$seen" = "before: python3 words
mapped from a file: nothing, in memory: python3 words
written to: nothing, ps: [python3]" ]
