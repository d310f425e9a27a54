"""pack: moves a module's parameters and buffers into memory of their own, page-aligned, so that all of it
merges.

malloc puts weights wherever it has room: a page with the end of one tensor and the beginning of something
else merges with nothing, and a tensor at an odd offset has no page in common with the same tensor
elsewhere. In the arena, every instance of a model has the same bytes on the same pages, and a large tensor
begins a page, so that models which have only some tensors in common share those.
"""

import ctypes
import mmap
import sys
from dataclasses import dataclass, field
from typing import Any

from mayfly.library import give_back_freed
from mayfly.regions import is_torch, tensors_of

LINE = 64  # small tensors begin a cache line
HUGE = 2 << 20
LARGE = 16 * mmap.PAGESIZE  # beginning a page wastes at most 1/16 of such a tensor


@dataclass
class Block:
    """The part of one storage that is used, and the tensors that look at it: tied weights have one block."""

    storage_address: int
    start: int
    end: int
    tensors: list[Any] = field(default_factory=list)
    moved_to: int = 0  # offset in the arena


def pack(module: Any) -> Any:
    """Packs the parameters and buffers of a torch.nn.Module into one arena and gives the same module back.

    Tied weights stay tied, and data types, strides, requires_grad, state_dict() and every output stay as
    they were; tensors on other devices stay where they are. What else refers to the old tensors' memory,
    such as a view kept outside the module, keeps the old memory. Call it once the weights are loaded, then
    advise(module).
    """
    if not is_torch(module, "Module"):
        raise TypeError(f"pack takes a torch.nn.Module, not a {type(module).__qualname__}")
    blocks = blocks_of(module)
    size = place(blocks)
    if not size:
        return module
    torch = sys.modules["torch"]
    arena = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(arena))
    for block in blocks:
        ctypes.memmove(base + block.moved_to, block.storage_address + block.start, block.end - block.start)
        # A storage of its own: torch.save of one tensor then saves that tensor, not the arena.
        moved = torch.frombuffer(
            arena, dtype=torch.uint8, offset=block.moved_to, count=block.end - block.start
        ).untyped_storage()
        for tensor in block.tensors:
            point_to(torch, tensor, moved, block.start)
    give_back_freed()
    return module


def blocks_of(module: Any) -> list[Block]:
    """The storages behind the module's tensors, in the order of the tensors: the same in every instance."""
    torch = sys.modules["torch"]
    blocks: dict[int, Block] = {}
    for tensor in tensors_of(module):
        if not movable(torch, tensor):
            continue
        storage = tensor.untyped_storage()
        item = tensor.element_size()
        start = tensor.storage_offset() * item
        last = sum(
            (length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        start, end = start // LINE * LINE, start + (last + 1) * item
        block = blocks.setdefault(storage.data_ptr(), Block(storage.data_ptr(), start, end))
        block.start, block.end = min(block.start, start), max(block.end, end)
        block.tensors.append(tensor)
    return list(blocks.values())


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


def place(blocks: list[Block]) -> int:
    """Gives every block its offset: large ones first, each on a page's beginning; then small ones.
    Returns the arena's size in bytes."""
    at = 0
    for large in (True, False):
        for block in blocks:
            size = block.end - block.start
            if (size >= LARGE) == large:
                to = mmap.PAGESIZE if large else LINE
                block.moved_to = at = -(-at // to) * to
                at += size
    # Mappings of whole huge pages begin where those begin, in every instance, and can be shared as such.
    # What is never touched takes no memory.
    whole = HUGE if at >= HUGE else mmap.PAGESIZE
    return -(-at // whole) * whole


def point_to(torch: Any, tensor: Any, storage: Any, start: int) -> None:
    """Lets a parameter or buffer, the same Python object, look at its bytes' new place."""
    moved = torch.empty(0, dtype=tensor.dtype)
    offset = tensor.storage_offset() - start // tensor.element_size()
    moved.set_(storage, offset, tensor.shape, tensor.stride())
    tensor.data = moved
