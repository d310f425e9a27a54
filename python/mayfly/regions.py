"""From an object to its memory: which addresses an array, a tensor, a buffer, a module or a container holds.

NumPy and PyTorch are recognised without being imported: an object can be one of theirs only if the program
has imported them already.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from mmap import PAGESIZE
from typing import Any, NamedTuple

from mayfly.frames import is_of, parts_of


class Region(NamedTuple):
    """Bytes from `start` to `end`, an address each; `start` is in, `end` is not."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return self.end - self.start


def span(address: int, shape: Iterable[int], strides: Iterable[int], item_bytes: int) -> Region | None:
    """The bytes between an array's lowest and highest element: strides may skip, run backwards or repeat."""
    low = high = address
    for length, stride in zip(shape, strides):
        if length == 0:
            return None
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return Region(low, high + item_bytes)


def of_array(array: Any) -> Iterator[Region]:
    """NumPy's arrays, and others that describe their memory in NumPy's way (`__array_interface__`)."""
    interface = array.__array_interface__
    if "O" in interface["typestr"]:
        raise TypeError("an array of Python objects holds pointers, which differ from process to process")
    kind, digits = interface["typestr"][1], interface["typestr"][2:].partition("[")[0]  # <f8, <U7, <M8[s]
    item_bytes = int(digits) * (4 if kind == "U" else 1)
    shape, strides = interface["shape"], interface.get("strides")
    if strides is None:
        strides, step = [], item_bytes
        for length in reversed(shape):
            strides.insert(0, step)
            step *= length
    if interface["data"] is None:
        yield from of_buffer(array)
    elif not isinstance(interface["data"], tuple):
        # An image of Pillow makes bytes for each caller.
        raise TypeError(
            f"a {type(array).__name__} gives copies of its contents, not its memory; "
            "keep numpy.array(...) of it in its place, and give that"
        )
    elif found := span(interface["data"][0], shape, strides, item_bytes):
        yield found


def of_tensor(tensor: Any) -> Iterator[Region]:
    """A PyTorch tensor in main memory; a sparse one by its parts."""
    torch = sys.modules["torch"]
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        parts = (tensor.indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif tensor.layout != torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} does not expose its memory")
    else:
        if tensor.device.type != "cpu":
            raise ValueError(f"the tensor is on {tensor.device}: only main memory can be shared")
        item_bytes = tensor.element_size()
        strides = [stride * item_bytes for stride in tensor.stride()]
        if found := span(tensor.data_ptr(), tensor.shape, strides, item_bytes):
            yield found
        return
    for part in parts:
        yield from of_tensor(part)


def of_module(module: Any) -> Iterator[Region]:
    """A PyTorch module's parameters and buffers, tied ones once; those on other devices are left out."""
    seen_any = False
    for tensor in tensors_of(module):
        if tensor.device.type == "cpu":
            yield from of_tensor(tensor)
            seen_any = True
        elif not seen_any:
            elsewhere = tensor.device
    if not seen_any and next(tensors_of(module), None) is not None:
        raise ValueError(f"the module is on {elsewhere}: only main memory can be shared")


def tensors_of(module: Any) -> Iterator[Any]:
    """Parameters, then buffers, in the same order in every instance of the model."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if sys.modules["torch"].nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} is not initialised yet: run the module once, then advise or pack it")
        yield tensor


def of_dlpack(thing: Any) -> Iterator[Region]:
    """Arrays of other libraries, which give their memory by DLPack."""
    if int(thing.__dlpack_device__()[0]) != 1:
        raise ValueError(f"the {type(thing).__name__} is on a device: only main memory can be shared")
    yield from of_array(sys.modules["numpy"].from_dlpack(thing))


class PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, the only way to the address of a read-only buffer, such as bytes."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


STRIDED_READ_ONLY = 0x0018  # PyBUF_STRIDES


def of_buffer(holder: Any) -> Iterator[Region]:
    """Anything with Python's buffer interface: bytes, bytearray, memoryview, mmap, array.array, ctypes'
    arrays."""
    view = PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(holder), ctypes.byref(view), STRIDED_READ_ONLY)
    try:
        if view.ndim and view.strides:
            found = span(view.buf, view.shape[: view.ndim], view.strides[: view.ndim], view.itemsize)
        else:
            found = Region(view.buf, view.buf + view.len) if view.len else None
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    if found:
        yield found


def is_torch(thing: Any, name: str) -> bool:
    """Whether it is a torch.Tensor or a torch.nn.Module, without importing PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    return isinstance(thing, torch.Tensor if name == "Tensor" else torch.nn.Module)


def has_buffer(thing: Any) -> bool:
    """Whether it has Python's buffer interface."""
    try:
        memoryview(thing).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True


def reader_of(thing: Any) -> Callable[[Any], Iterator[Region]] | None:
    """The function above for such an object; None for a container or an unknown object."""
    if is_torch(thing, "Tensor"):
        return of_tensor
    if is_torch(thing, "Module"):
        return of_module
    if isinstance(getattr(thing, "__array_interface__", None), dict) and not isinstance(thing, type):
        return of_array
    if has_buffer(thing):
        return of_buffer
    if hasattr(thing, "__dlpack__") and not isinstance(thing, type) and "numpy" in sys.modules:
        return of_dlpack
    return None


def has_memory(part: Any) -> bool:
    """Whether a part of a table or a model may hold memory to share: an array of Python objects, a
    setting or a random state does not."""
    if is_of(part, "numpy", "ndarray"):
        return not part.dtype.hasobject or any(parts_of(one) is not None for one in part.flat)
    return (
        parts_of(part) is not None
        or reader_of(part) is not None
        or (isinstance(part, (list, tuple)) and any(map(has_memory, part)))
    )


CONTAINERS = frozenset((dict, list, tuple, set, frozenset))
SCALARS = frozenset((type(None), bool, int, float, complex, str))


def is_small(value: Any) -> bool:
    """Whether a value is surely no memory to share: a number, a text, or bytes that fill no page."""
    kind = type(value)
    return kind in SCALARS or (kind is bytes and len(value) < PAGESIZE)


def regions_of(thing: Any) -> Iterator[Region]:
    """Every region behind an object and, for a dict, list, tuple or set, behind all its elements.

    Raises TypeError for an object whose memory cannot be found. Containers that contain themselves are walked
    once.
    """
    seen: dict[int, Any] = {}  # kept alive: the next object could have the same id
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        # A vocabulary has millions of values: without a look at every library's types for each.
        if type(one) in CONTAINERS:
            values = one.values() if type(one) is dict else one
            waiting += [value for value in values if not is_small(value)]
        elif (parts := parts_of(one)) is not None:
            for part in filter(has_memory, parts):
                # Ensembles keep their trees in arrays of objects.
                waiting += part.flat if is_of(part, "numpy", "ndarray") and part.dtype.hasobject else [part]
        elif reader := reader_of(one):
            yield from reader(one)
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (Sequence, Set)) and not isinstance(one, str):
            waiting += one
        elif one is not thing and (one is None or isinstance(one, (str, int, float, complex))):
            continue  # a state dict may hold a version number or a name beside its arrays
        else:
            raise TypeError(unknown(one))


def unknown(thing: Any) -> str:
    """The error message for an object whose memory cannot be found."""
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
    if "onnxruntime" in kind:
        hint = "it does not expose its weights: create it inside 'with mayfly.advising():'"
    else:
        hint = "give an array, a tensor, a buffer, a torch.nn.Module, or a dict or list of them"
    return f"cannot find the memory of a {kind}; {hint}"


def whole_pages(regions: Iterable[Region]) -> list[Region]:
    """The pages that lie wholly inside the regions; neighbours that touch become one, in order of address.

    Two arrays that share a page cover it together, and it counts. A page that may also hold other data is
    left out: advising it would be harmless, but it would merge with nothing.
    """
    joined: list[Region] = []
    for region in sorted(regions):
        if joined and region.start <= joined[-1].end:
            joined[-1] = Region(joined[-1].start, max(joined[-1].end, region.end))
        else:
            joined.append(region)
    pages = []
    for region in joined:
        start, end = -(-region.start // PAGESIZE) * PAGESIZE, region.end // PAGESIZE * PAGESIZE
        if start < end:
            pages.append(Region(start, end))
    return pages


def without(regions: list[Region], taken: list[Region]) -> list[Region]:
    """The parts of `regions` that no region of `taken` covers; both are in order of address."""
    left = []
    for start, end in regions:
        for other in taken:
            if other.end <= start or other.start >= end:
                continue
            if other.start > start:
                left.append(Region(start, other.start))
            start = other.end
        if start < end:
            left.append(Region(start, end))
    return left
