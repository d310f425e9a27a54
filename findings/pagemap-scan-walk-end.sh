#!/usr/bin/env bash
# PAGEMAP_SCAN may say that its walk ended earlier than it did: who continues at `walk_end` until the end of a mapping, as the
# manual page has it, gets up to 512 regions twice and counts more memory than there is.
#
# Linux 6.18.44 and 7.3.4, Python 3.11 of Debian 12 (python3-minimal 3.11.2-1+b1). The kernel gathers regions in a buffer of its own, of
# 512. It notes an end whenever that is full, and the end of the whole range only if none was noted before. So after a walk to
# the end of a range, `walk_end` may lie before the last regions that the call returned. A caller is right if it takes a
# walk for whole as soon as the array is not full, and else continues behind the last region that it got.
#
# Seen:
#   pages: 8192, KiB: 32768
#   from walk_end: 34816 KiB, 512 regions twice
#   behind the last region: 32768 KiB, 0 regions twice
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program" <<'PYTHON'
import ctypes, fcntl, mmap, struct

PAGE, MIB = mmap.PAGESIZE, 1 << 20
SCAN, PRESENT = 0xC0606610, 1 << 3  # ioctl(2)'s number and PAGE_IS_PRESENT
MADV_NOHUGEPAGE, ROOM = 15, 4096

def scan(file, start, end):
    "The regions of one call, and where the kernel says that it ended."
    regions = (ctypes.c_uint64 * (3 * ROOM))()
    words = [96, 0, start, end, 0, ctypes.addressof(regions), ROOM, 0, 0, PRESENT, 0, PRESENT]
    argument = bytearray(struct.pack("12Q", *words))
    found = fcntl.ioctl(file, SCAN, argument, True)
    return [(regions[3 * i], regions[3 * i + 1]) for i in range(found)], struct.unpack_from("Q", argument, 32)[0]

def all_regions(start, end, next_start):
    found = []
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        while start < end:
            regions, walked_to = scan(file, start, end)
            found += regions
            start = next_start(regions, walked_to, end)
    return found

def behind_the_last(regions, _, end):
    return regions[-1][1] if len(regions) == ROOM else end

memory = mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(64 * MIB), MADV_NOHUGEPAGE)
pages = range(0, 64 * MIB, 2 * PAGE)  # each second one
for at in pages:
    memory[at] = 1
print(f"pages: {len(pages)}, KiB: {len(pages) * PAGE // 1024}")
for name, step in (("from walk_end", lambda _, walked_to, end: walked_to), ("behind the last region", behind_the_last)):
    found = all_regions(start, start + 64 * MIB, step)
    kib = sum(end - begin for begin, end in found) // 1024
    print(f"{name}: {kib} KiB, {len(found) - len(set(found))} regions twice")
PYTHON
seen=$(/usr/bin/python3 "$folder/program")
echo "$seen"
[ "$seen" = "pages: 8192, KiB: 32768
from walk_end: 34816 KiB, 512 regions twice
behind the last region: 32768 KiB, 0 regions twice" ]
