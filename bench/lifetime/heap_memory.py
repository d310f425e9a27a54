"""The memory of a process's allocator: anonymous mappings, without threads' stacks and without libraries' own
written data."""

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20
HUGE = 2 << 20


@dataclass
class Mapping:
    start: int
    end: int
    anonymous_kib: int


def mappings(pid: int) -> Iterator[Mapping]:
    """Since Linux 6.7 threads' stacks may have no huge pages ('nh'): that distinguishes them from a heap."""
    with open(f"/proc/{pid}/smaps") as smaps:
        one, is_heap = Mapping(0, 0, 0), False
        for line in smaps:
            words = line.split()
            if words[0][-1] != ":":
                start, end = (int(part, 16) for part in words[0].split("-"))
                one = Mapping(start, end, 0)
                is_heap = words[4] == "0" and (len(words) == 5 or words[5] in ("[heap]", "[anon]"))
            elif words[0] == "Anonymous:":
                one.anonymous_kib = int(words[1])
            elif words[0] == "VmFlags:" and is_heap and "nh" not in words and one.anonymous_kib:
                yield one


def resident_mib(pid: int) -> float:
    return sum(one.anonymous_kib for one in mappings(pid)) / 1024


def occupied_mib(pid: int) -> float:
    """Size of the aligned 2 MiB ranges on which any page is resident (needs root)."""
    ranges = set()
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for one in mappings(pid):
            for at in range(one.start, one.end, 1 << 28):
                end = min(one.end, at + (1 << 28))
                pagemap.seek((at >> 12) * 8)
                # The top bit of a page's 8 bytes is set if it is present.
                flags = pagemap.read((end - at) >> 9)[7::8]
                page = at
                while page < end:
                    following = min((page | HUGE - 1) + 1, end)
                    part = flags[(page - at) >> 12 : (following - at) >> 12]
                    if part and max(part) >= 0x80:
                        ranges.add(page // HUGE)
                    page = following
    return len(ranges) * HUGE / MIB
