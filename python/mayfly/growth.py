"""advising: shares the memory that a block of code allocates, for libraries that do not expose their weights.

ONNX Runtime, TensorFlow and others keep a model's weights in buffers of their own. The large anonymous
mappings that appear while the block runs are those buffers, so `advising` advises them at its end.
"""

import contextlib
import os
from array import array
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path

from mayfly import library, naming
from mayfly.arena import HUGE
from mayfly.packing import OF_FILE, PAGE_MAP, PRESENT
from mayfly.regions import Region, without

MAPS = Path("/proc/self/maps")
RELOCATED = 64 << 10  # a dozen libraries have most of it: shorter runs would cost a mapping each


@contextlib.contextmanager
def advising(
    *, min_bytes: int = 1 << 20, heap: bool = False, quiet: bool = False, required: bool = True
) -> Iterator[list[Region]]:
    """Advises, when the block ends without an exception, every new anonymous mapping of `min_bytes` or more.

        with mayfly.advising(heap=True) as shared:
            session = onnxruntime.InferenceSession("model.onnx")

    Yields a list that holds, after the block, the regions that were advised. Memory that cannot be shared,
    such as the stacks of threads that the block starts, is left out.
    heap: the growth of malloc's own heap as well, where ONNX Runtime's weights are. Worth it where most of
    the allocated memory is data: pages of small objects are equal nowhere, and are written soon. quiet and
    required: as in `advise`.
    """
    is_there = False
    with library.or_without(required):
        library.library()  # loaded before, so that its own memory is not new
        is_there = True
    if not is_there:
        yield []
        return
    before = anonymous_mappings(heap)
    advised: list[Region] = []
    with library.large_blocks_apart() if heap else contextlib.nullcontext():
        yield advised
    if heap:
        library.give_back_freed()  # memory that loading has freed is not worth sharing
    with library.or_without(required):
        new = [
            region for region in without(anonymous_mappings(heap), before) if region.size_bytes >= min_bytes
        ]
        flags = library.QUIET if quiet else 0
        if naming.defers_sharing():
            naming.share(new, flags)
            advised.extend(new)
        else:
            # The stacks of threads that have started meanwhile are among them, and cannot be shared.
            advised.extend(Region(*shared) for shared in library.advise_possible(new, flags))


def advise_process(*, min_bytes: int = 256 << 10, required: bool = True) -> int:
    """Advises every anonymous mapping of `min_bytes` or more that the process has now, malloc's heap
    included, and what the loader has relocated in libraries.

    For an idle instance, such as a server after its first request. Other Python threads wait for a piece of
    16 MiB at a time; the caller must make sure that threads of other libraries unmap no memory meanwhile.
    Memory keeps its semantics under any allocator that calls the C library: it grows, and is zero after it
    was dropped. `advise` of the model alone is the better choice where that is most of the memory.

    Objects that hold addresses are equal only where instances have the same layout and hash seed, as under
    `mayfly share run`: then nearly all of a process is equal, down to its imported modules. Where ASLR
    matters more than memory, advise the model alone.

    Returns the number of bytes examined. Memory that cannot be shared, such as locked memory, is left out.
    Where a loaded library empties memory past the C library, as wasmtime does, nothing is shared (ENOTSUP).
    required: as in `advise`.
    """
    if naming.defers_sharing():
        naming.share([naming.EVERYTHING], 0)
        return sum(region.size_bytes for region in anonymous_mappings(heap=True))
    library.give_back_freed()
    with library.or_without(required):
        library.refuse_bypass()
        large = [region for region in anonymous_mappings(heap=True) if region.size_bytes >= min_bytes]
        all_pieces = (piece for region in [*large, *relocated()] for piece in pieces(region))
        shared = library.advise_possible(all_pieces, 0, by=library.alone)
        return sum(end - start for start, end in shared)
    return 0


def pieces(region: Region) -> Iterator[Region]:
    """Pieces of a region for one call each; all but the last end at a huge page's boundary."""
    start = region.start
    while start < region.end:
        end = min((start + library.BATCH) // HUGE * HUGE, region.end)
        yield Region(start, end)
        start = end


def anonymous_mappings(heap: bool = False, maps: Path = MAPS) -> list[Region]:
    """Readable, writable, private mappings without a file or a name, in order of address; and [heap]."""
    found = []
    for line in maps.read_text().splitlines():
        where, permissions, _, _, inode, *name = line.split(maxsplit=5)
        unnamed = not name or (heap and name == ["[heap]"])
        if permissions.startswith("rw") and permissions.endswith("p") and inode == "0" and unnamed:
            start, end = (int(part, 16) for part in where.split("-"))
            found.append(Region(start, end))
    return found


def relocated(min_bytes: int = RELOCATED) -> list[Region]:
    """Runs of pages that the process has written in mappings of files that are private, and read-only by now:
    tables of addresses, as the loader has filled them in. They are equal where the layout is. The other
    pages of such a mapping are the file's, and all processes have them once."""
    found: list[Region] = []
    try:
        page_map = os.open(PAGE_MAP, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the process has changed its user; the library reports that
        return found
    try:
        for start, end in read_only_files():
            entries = array("Q", os.pread(page_map, (end - start) // PAGESIZE * 8, start // PAGESIZE * 8))
            begin = 0
            for at, entry in enumerate([*entries, 0]):
                if entry & (PRESENT | OF_FILE) != PRESENT:
                    if (at - begin) * PAGESIZE >= min_bytes:
                        found.append(Region(start + begin * PAGESIZE, start + at * PAGESIZE))
                    begin = at + 1
    finally:
        os.close(page_map)
    return found


def read_only_files(maps: Path = MAPS) -> list[Region]:
    """Private read-only mappings of files, in order of address."""
    found = []
    for line in maps.read_text().splitlines():
        where, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        if permissions == "r--p" and inode != "0":
            start, end = (int(part, 16) for part in where.split("-"))
            found.append(Region(start, end))
    return found
