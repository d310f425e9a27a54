"""A process's memory in the two units in which allocators are compared, for every allocator alike.

`resident`: its 4 KiB pages. `ranges`: the whole of each aligned 2 MiB range of which any page is resident, as
LLAMA §9.1 counts. On huge pages the two are equal. If an allocator returns small pages from inside huge ones,
the second is larger, and no other process can have those ranges as huge pages. `huge`: of the first, what
lies on huge pages.

All three are of anonymous memory: an allocator's objects and its own data. Apart are mapped files and shared
memory (`files`), data of programs and libraries that follows their files (.bss), and stacks: each touches a
range or two, however little it uses.
"""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE, RANGE, KIB = 4096, 2 << 20, 1024
# A stack lies right above its guard, which is no larger than this.
MOST_GUARD = 64 << 10
SPECIAL = ("[stack]", "[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]")
# ioctl(PAGEMAP_SCAN), since Linux 6.7, and its categories.
SCAN = 0xC0606610
IS_FILE, IS_PRESENT, IS_ZERO, IS_HUGE = 1 << 2, 1 << 3, 1 << 5, 1 << 6
REGIONS = 4096
# Of a page's 8 bytes in pagemap the top bit says that it is there.
THERE = bytes(byte >= 0x80 for byte in range(256))


@dataclass(frozen=True)
class Memory:
    """Bytes. `rss`: as the kernel counts it, files and stacks included."""

    resident: int
    ranges: int
    huge: int
    files: int
    rss: int


@dataclass
class Mapping:
    start: int
    end: int
    name: str
    is_file: bool
    is_guard: bool
    offset: int
    sizes: dict[str, int]
    flags: list[str]

    def size(self, *names: str) -> int:
        return sum(self.sizes.get(name, 0) for name in names)


def of(pid: int) -> Memory:
    """The memory of a process now. That of another user's process needs root."""
    resident, ranges, huge = 0, set(), 0
    everything = list(mappings(pid))
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for one in heaps(pid, everything):
            for start, end, is_huge in pages(pagemap, one):
                resident += end - start
                huge += (end - start) * is_huge
                ranges.update(range(start // RANGE, (end - 1) // RANGE + 1))
    reserved = sum(one.size("Private_Hugetlb", "Shared_Hugetlb") for one in everything)
    return Memory(
        resident + reserved,
        len(ranges) * RANGE + reserved,
        huge + reserved,
        sum(one.size("Rss") for one in everything if one.is_file),
        sum(one.size("Rss") for one in everything),
    )


def mappings(pid: int) -> Iterator[Mapping]:
    one = None
    with open(f"/proc/{pid}/smaps") as smaps:
        for line in smaps:
            name, _, rest = line.partition(":")
            if name.isidentifier() and one:
                if name == "VmFlags":
                    one.flags = rest.split()
                    yield one
                elif rest.endswith(" kB\n"):
                    one.sizes[name] = int(rest.split()[0]) * KIB
            elif "-" in line.split(" ", 1)[0]:
                addresses, mode, offset, _, inode, *path = line.split(maxsplit=5)
                start, end = (int(part, 16) for part in addresses.split("-"))
                is_file = inode != "0"
                is_guard = not is_file and mode == "---p" and end - start <= MOST_GUARD
                path = path[0].rstrip("\n") if path else ""
                one = Mapping(start, end, path, is_file, is_guard, int(offset, 16), {}, [])


def heaps(pid: int, everything: list[Mapping]) -> Iterator[Mapping]:
    """The anonymous mappings without stacks and without a file's own data."""
    marks_stacks = kernel() >= (6, 7)
    image_end, base, guard_end = 0, {}, 0
    for one in everything:
        if one.is_file:
            if one.offset == 0:
                base[one.name] = one.start
            if one.name in base:
                image_end = max(image_end, base[one.name] + image_bytes(pid, one.name))
            continue
        # Since Linux 6.7 a stack has the mark 'nh' (no huge pages). An allocator's mapping may have it, too.
        is_stack = one.start == guard_end and (not marks_stacks or "nh" in one.flags)
        if one.is_guard:
            guard_end = one.end
        elif one.name not in SPECIAL and not is_stack and one.size("Rss"):
            one.start = min(max(one.start, image_end), one.end)
            yield one


def pages(pagemap, one: Mapping) -> Iterator[tuple[int, int, bool]]:
    """The parts of a mapping that are there: start, end, whether on huge pages."""
    if one.start == one.end:
        return
    try:
        yield from scanned(pagemap, one)
    except OSError:  # a kernel before 6.7; it cannot tell pages of zeros that were only read
        huge = one.size("AnonHugePages")
        for start, end in read(pagemap, one):
            part = min(huge, end - start)
            huge -= part
            if part:
                yield start, start + part, True
            if start + part < end:
                yield start + part, end, False


def scanned(pagemap, one: Mapping) -> Iterator[tuple[int, int, bool]]:
    regions = (ctypes.c_uint64 * (3 * REGIONS))()
    start = one.start
    while start < one.end:
        wanted, not_wanted = IS_PRESENT, IS_FILE | IS_ZERO
        argument = bytearray(
            struct.pack(
                "12Q",
                *(96, 0, start, one.end, 0, ctypes.addressof(regions), REGIONS, 0),
                *(not_wanted, wanted | not_wanted, 0, IS_PRESENT | IS_HUGE),
            )
        )
        found = fcntl.ioctl(pagemap, SCAN, argument, True)
        for at in range(0, 3 * found, 3):
            yield regions[at], regions[at + 1], bool(regions[at + 2] & IS_HUGE)
        if found < REGIONS:
            return
        # Not from where the kernel says that its walk ended: after a whole walk that may be an address before
        # the last 512 regions (findings/pagemap-scan-walk-end.sh).
        start = regions[3 * found - 2]


def read(pagemap, one: Mapping) -> Iterator[tuple[int, int]]:
    """As `scanned`, from each page's own word; parts of at most 2 MiB."""
    for at in range(one.start, one.end, 1 << 28):
        end = min(one.end, at + (1 << 28))
        words = os.pread(pagemap.fileno(), (end - at) // PAGE * 8, at // PAGE * 8)
        there = words[7::8].translate(THERE)
        first = there.find(1)
        while first >= 0:
            # To the end of its range, or of the pages that are there.
            border = first + (RANGE - (at + first * PAGE) % RANGE) // PAGE
            last = there.find(0, first, border)
            last = min(border, len(there)) if last < 0 else last
            yield at + first * PAGE, at + last * PAGE
            first = there.find(1, last)


@cache
def kernel() -> tuple[int, int]:
    first, second, *_ = os.uname().release.split(".")
    return int(first), int(second.partition("-")[0])


def image_bytes(pid: int, name: str) -> int:
    """The bytes of an ELF file in memory, with the data that follows the file's; 0 for other files."""
    path = Path(f"/proc/{pid}/root{name}")
    try:
        return image_bytes_of(path, path.stat().st_ino)
    except OSError:
        return 0


@cache
def image_bytes_of(path: Path, _: int) -> int:
    with path.open("rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            return 0
        at, size, number = (
            struct.unpack_from("<Q", header, 32)[0],
            *struct.unpack_from("<HH", header, 54),
        )
        file.seek(at)
        table = file.read(size * number)
    segments = [struct.unpack_from("<IIQQQQQ", table, size * n) for n in range(number)]
    loaded = [(address, bytes_) for kind, _, _, address, _, _, bytes_ in segments if kind == 1]
    if not loaded:
        return 0
    end = max(address + bytes_ for address, bytes_ in loaded)
    return -(-end // PAGE) * PAGE - min(address for address, _ in loaded) // PAGE * PAGE


def numbers(memory: Memory) -> dict[str, float]:
    """As KiB, by the names that results have."""
    return {
        "rss_kib": memory.rss / KIB,
        "anon_kib": memory.resident / KIB,
        "ranges_kib": memory.ranges / KIB,
        "anon_huge_kib": memory.huge / KIB,
        "files_kib": memory.files / KIB,
    }
