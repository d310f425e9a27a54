"""pack: moves the memory of a model, or of any other data, onto pages of its own, so that all of it merges.

malloc puts weights wherever it has room: a page with the end of one tensor and the start of other data
merges with nothing, and a tensor at an odd offset has no page in common with the same tensor elsewhere. In
the arena, every instance of a model has the same bytes on the same pages, and a large tensor begins a
page, so that models which have only some tensors in common share those."""

import ctypes
import os
import sys
from array import array
from dataclasses import dataclass, field
from mmap import PAGESIZE
from typing import Any

from mayfly.arena import LINE, new, place
from mayfly.copying import moved
from mayfly.library import give_back_freed
from mayfly.regions import is_torch, regions_of, tensors_of, whole_pages


@dataclass
class Block:
    """The used part of one storage, and the tensors that use it: tied weights have one block."""

    storage_address: int
    start: int
    end: int
    tensors: list[Any] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes that the arena needs for it."""
        return self.end - self.start


def pack(thing: Any) -> Any:
    """Lays out the memory behind `thing` anew, identically in every instance, and returns the object.

    A torch.nn.Module stays the same object. Its parameters and buffers move into one arena: tied weights stay
    tied, and data types, strides, requires_grad, state_dict() and every output stay as they were; tensors on
    other devices stay where they are. Other references to the old tensors' memory, such as a view kept
    outside the module, keep the old memory.

    For any other object the call returns an equal one, to be kept in place of the first: NumPy arrays, pandas
    frames, Arrow tables, fitted estimators of scikit-learn, dicts and lists of them, and all that pickle can
    copy. Its arrays lie in one arena. Objects that copy them once more, as trees do, have each large one on
    pages of its own.

    Call it once everything is loaded, then advise(thing). In a forked process what the fork shares stays as
    it is, and the call returns `thing`: all processes have one copy of it, and the packed one would be one
    more. Pack in the parent, before it forks.
    """
    if is_torch(thing, "Tensor"):
        raise TypeError("pack takes the torch.nn.Module that a tensor belongs to, not a Tensor")
    if is_kept_by_fork(thing):
        return thing
    if is_torch(thing, "Module"):
        pack_module(thing)
    else:
        thing = moved(thing)
    give_back_freed()
    _replaced.append(True)
    return thing


PAGE_MAP = "/proc/self/pagemap"
PRESENT, OF_FILE, EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
SAMPLES = 4096


def is_kept_by_fork(thing: Any) -> bool:
    """Whether another process has most of the memory behind an object as well, since a fork. Of large memory
    some pages decide. False where it cannot be known."""
    try:
        regions = whole_pages(regions_of(thing))
        file = os.open(PAGE_MAP, os.O_RDONLY | os.O_CLOEXEC)
    # Packing knows objects that advice does not; and the process may have changed its user.
    except (TypeError, ValueError, OSError):
        return False
    step = max(1, sum(region.size_bytes for region in regions) // PAGESIZE // SAMPLES)
    shared = seen = 0
    try:
        for region in regions:
            count = region.size_bytes // PAGESIZE
            entries = array("Q", os.pread(file, 8 * count, region.start // PAGESIZE * 8))[::step]
            shared += sum(entry & (PRESENT | OF_FILE | EXCLUSIVE) == PRESENT for entry in entries)
            seen += len(entries)
    finally:
        os.close(file)
    return 2 * shared > seen


# Whether objects have been packed since the last call of `give_back_replaced`.
_replaced: list[bool] = []


def give_back_replaced() -> None:
    """Returns the memory of objects that the program has dropped for packed ones: it does so after `pack`."""
    if _replaced:
        _replaced.clear()
        give_back_freed()


def pack_module(module: Any) -> None:
    """Moves a torch.nn.Module's parameters and buffers into one arena. Raises ValueError where one is not
    initialised yet."""
    blocks = blocks_of(module)
    offsets, size = place([block.size_bytes for block in blocks])
    if not size:
        return
    torch = sys.modules["torch"]
    arena = new(size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(arena))
    for block, offset in zip(blocks, offsets):
        ctypes.memmove(base + offset, block.storage_address + block.start, block.size_bytes)
        # A storage of its own: torch.save of one tensor then saves that tensor, not the arena.
        bytes_of_block = torch.frombuffer(arena, dtype=torch.uint8, offset=offset, count=block.size_bytes)
        for tensor in block.tensors:
            point_to(torch, tensor, storage_of(bytes_of_block), block.start)


def blocks_of(module: Any) -> list[Block]:
    """The storages behind the module's tensors, in the order of the tensors: the same in every instance."""
    torch = sys.modules["torch"]
    blocks: dict[int, Block] = {}
    for tensor in tensors_of(module):
        if not movable(torch, tensor):
            continue
        storage = storage_of(tensor)
        item = tensor.element_size()
        start = tensor.storage_offset() * item
        last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
        start, end = start // LINE * LINE, start + (last + 1) * item
        block = blocks.setdefault(storage.data_ptr(), Block(storage.data_ptr(), start, end))
        block.start, block.end = min(block.start, start), max(block.end, end)
        block.tensors.append(tensor)
    return list(blocks.values())


def storage_of(tensor: Any) -> Any:
    """A tensor's bytes, of any type. PyTorch 1 has it by another name."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor.storage().untyped()


def movable(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is nothing but strided elements in main memory. Quantised ones and subclasses keep
    more than that, and stay where they are."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and type(tensor.data) is torch.Tensor
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def point_to(torch: Any, tensor: Any, storage: Any, start: int) -> None:
    """Points a parameter or buffer, the same Python object, to its bytes' new address."""
    moved = torch.empty(0, dtype=tensor.dtype)
    offset = tensor.storage_offset() - start // tensor.element_size()
    moved.set_(storage, offset, tensor.shape, tensor.stride())
    tensor.data = moved
