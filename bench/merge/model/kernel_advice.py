"""What an instance asks the kernel for. madvise(MADV_UPM), on Mayfly's kernel: of a model's parameters where
they lie (UPM §VI-B), or of all private memory of the process. KSM: of the whole process."""

import ctypes
import os
import sys
from collections.abc import Iterable

PR_SET_MEMORY_MERGE = 67
MADV_UPM = 0x5550
PAGE = os.sysconf("SC_PAGE_SIZE")

Range = tuple[int, int]


def of_parameters(model) -> list[Range]:
    """Whole pages of a PyTorch model's parameters and buffers."""
    found = []
    for tensor in [*model.parameters(), *model.buffers()]:
        start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        first, end = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if first < end:
            found.append((first, end))
    return found


def of_process() -> list[Range]:
    """Private writable mappings without a file, the stack left out."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split()
            name = words[5] if len(words) > 5 else ""
            if words[1] == "rw-p" and name in ("", "[heap]"):
                first, end = (int(part, 16) for part in words[0].split("-"))
                found.append((first, end))
    return found


def advise(ranges: Iterable[Range]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for first, end in ranges:
        if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), MADV_UPM):
            error = ctypes.get_errno()
            raise OSError(error, f"madvise(MADV_UPM) of {end - first} bytes: {os.strerror(error)}")


def give_to_ksm() -> None:
    """Gives the whole process to KSM."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0):
        sys.exit("instance: prctl PR_SET_MEMORY_MERGE: not permitted, or not in this kernel")
