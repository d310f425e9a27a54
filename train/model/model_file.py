"""The model file, byte by byte: written here, mapped by the heap (docs/lifetime.md describes the layout).
Everything is little endian and at multiples of 64 bytes; a checksum covers all that follows it."""

import json
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import xxhash

from train.errors import TrainError

MAGIC = b"MAYFLYLM"
VERSION = 1
RECURRENT = 1
TABLE = 2
LIMITS_MS = np.array([10, 100, 1000, 10_000, 100_000, 1_000_000, 2**64 - 1], np.uint64)
MOST_ROWS = 32767
STEP_ENDS = 0x8000
"""Set in an entry of `steps` that is the last of its step."""

_HEADER = struct.Struct("<8sIIQQIIIIIIQ")
_SECTION = struct.Struct("<IIQQQ")
_MODULE = struct.Struct("<32sIIII16x")
_ALIGNMENT = 64
_CHECKED_FROM = 32


@dataclass
class Module:
    """A file with code, by build-id: its ranges are `first` to `first + ranges` of `starts`."""

    build_id: bytes
    first: int
    ranges: int


def _section(kind: int, dtype: str, **more):
    return field(metadata={"kind": kind, "dtype": dtype}, **more)


def _part(kind: int, dtype: str):
    """A section that only some models have."""
    return _section(kind, dtype, default=None)


def _filled_later(kind: int, dtype: str):
    """A section of functions' addresses, which `train.model.link.link` fills."""
    return _section(kind, dtype, default_factory=lambda: np.zeros(0, dtype))


@dataclass
class Model:
    """The content of a model file. Class o means that an object dies within `limits[o]` ms.

    A context becomes steps: each return address, less one, falls into a range, which has a frame, which has
    entries in `steps`; entries up to one marked `STEP_ENDS` are rows that are added up for one step of the
    recurrence. In a table each entry is a function: `keys` has the beginnings of contexts, `outputs` their
    classes."""

    encoder: int
    hidden: int
    most_frames: int
    outermost_first: bool
    metadata: dict
    modules: list[Module]
    limits: np.ndarray = _section(2, "<u8")
    starts: np.ndarray = _filled_later(4, "<u4")
    range_frames: np.ndarray = _filled_later(5, "<u4")
    frames: np.ndarray = _filled_later(6, "<u4")
    steps: np.ndarray = _filled_later(7, "<u2")
    functions: int = 0
    rows: np.ndarray | None = _part(8, "<i1")
    row_scales: np.ndarray | None = _part(9, "<f4")
    bias: np.ndarray | None = _part(10, "<f4")
    recurrent: np.ndarray | None = _part(11, "<i1")
    recurrent_scales: np.ndarray | None = _part(12, "<f4")
    dense: np.ndarray | None = _part(13, "<f4")
    dense_bias: np.ndarray | None = _part(14, "<f4")
    keys: np.ndarray | None = _part(15, "<u8")
    outputs: np.ndarray | None = _part(16, "u1")
    names: np.ndarray | None = _part(1000, "u1")
    """Read by train/model/link.py and `mayfly bind`, not by the heap."""
    seen: np.ndarray | None = _part(1001, "u1")
    """Likewise: the contexts that it was made from (train/model/build_overlap.py)."""


_METADATA, _MODULES = 1, 3
_ARRAYS = {each.name: each.metadata for each in fields(Model) if "kind" in each.metadata}


def to_bytes(model: Model) -> bytes:
    """The whole file. ValueError for a model that the file cannot hold: too many rows, or weights that are
    not finite."""
    outputs = len(model.limits)
    row_count = model.functions if model.encoder == TABLE else len(model.row_scales)
    if not 1 <= row_count <= MOST_ROWS:
        raise ValueError(f"{row_count} rows")
    for name in ("row_scales", "bias", "recurrent_scales", "dense", "dense_bias"):
        if model.encoder == RECURRENT and not np.isfinite(getattr(model, name)).all():
            raise ValueError(f"{name} is not finite")
    metadata = json.dumps(model.metadata, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    modules = b"".join(
        _MODULE.pack(module.build_id, len(module.build_id), module.first, module.ranges, 0)
        for module in model.modules
    )
    sections = [(_METADATA, metadata, len(metadata)), (_MODULES, modules, len(model.modules))]
    for name, about in _ARRAYS.items():
        if getattr(model, name) is None:
            continue
        array = np.ascontiguousarray(getattr(model, name), about["dtype"])
        if name == "recurrent":
            array = interleaved(array.reshape(4 * model.hidden, model.hidden))
        sections.append((about["kind"], array.tobytes(), array.size))
    sections.sort(key=lambda section: section[0])
    at = _aligned(_ALIGNMENT + _SECTION.size * len(sections))
    table, body = b"", b""
    for kind, content, count in sections:
        table += _SECTION.pack(kind, 0, at + len(body), len(content), count)
        body += content + bytes(-len(content) % _ALIGNMENT)
    whole = bytes(_ALIGNMENT) + table
    whole += bytes(at - len(whole)) + body
    shape = (
        model.encoder,
        model.hidden,
        outputs,
        row_count,
        model.most_frames,
        int(model.outermost_first),
        0,
    )
    whole = _HEADER.pack(MAGIC, VERSION, len(sections), len(whole), 0, *shape) + whole[_ALIGNMENT:]
    checksum = xxhash.xxh3_64_intdigest(whole[_CHECKED_FROM:])
    return whole[:24] + struct.pack("<Q", checksum) + whole[_CHECKED_FROM:]


def write(model: Model, path: str | Path) -> int:
    """Writes the file whole or not at all; returns its bytes. Raises TrainError where it cannot be
    written."""
    content = to_bytes(model)
    folder = Path(path).absolute().parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{Path(path).name}.", delete=False) as file:
            try:
                file.write(content)
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise TrainError(f"{path}: cannot be written: {error.strerror}") from None
    return len(content)


def read(path: str | Path) -> Model:
    """Reads a file that `write` wrote. Raises TrainError for anything else, for a file of another version,
    one that is cut short or damaged."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise TrainError(f"{path}: {error.strerror}") from None
    return from_bytes(content, path)


def from_bytes(content: bytes, path: str | Path) -> Model:
    """The model in a file's bytes; `path` is the name of the file in a TrainError."""
    if len(content) < _ALIGNMENT or content[:8] != MAGIC:
        raise TrainError(f"{path}: not a model of 'mayfly train'")
    _, version, count, length, checksum, *shape, _ = _HEADER.unpack_from(content)
    if version != VERSION:
        raise TrainError(
            f"{path}: a model of version {version}, this program reads {VERSION}: train it again"
        )
    if length != len(content):
        raise TrainError(f"{path}: {len(content)} bytes, not {length}: the file is truncated")
    if checksum != xxhash.xxh3_64_intdigest(content[_CHECKED_FROM:]):
        raise TrainError(f"{path}: the checksum is wrong: the file is damaged")
    encoder, hidden, _, row_count, most_frames, order = shape
    if encoder not in (RECURRENT, TABLE):
        raise TrainError(f"{path}: a model of a kind that this program does not know")
    found = {}
    for number in range(count):
        kind, _, offset, size, entries = _SECTION.unpack_from(content, _ALIGNMENT + number * _SECTION.size)
        found[kind] = (content[offset : offset + size], entries)
    arrays = {
        name: np.frombuffer(found[a["kind"]][0], a["dtype"])
        for name, a in _ARRAYS.items()
        if a["kind"] in found
    }
    if encoder == RECURRENT:
        width = 4 * hidden
        arrays["rows"] = arrays["rows"].reshape(-1, width)
        arrays["recurrent"] = (
            arrays["recurrent"].reshape(hidden // 4, width, 4).transpose(1, 0, 2).reshape(width, hidden)
        )
        arrays["dense"] = arrays["dense"].reshape(-1, hidden)
    else:
        arrays["functions"] = row_count
    modules = [
        Module(build_id[:size], first, ranges)
        for build_id, size, first, ranges, _ in _MODULE.iter_unpack(found[_MODULES][0])
    ]
    return Model(
        encoder, hidden, most_frames, bool(order), json.loads(found[_METADATA][0]), modules, **arrays
    )


def packed_names(names: list | dict) -> np.ndarray:
    """The names that a model knows, as in its file: compressed JSON, as uint8."""
    return np.frombuffer(zlib.compress(json.dumps(names, ensure_ascii=False).encode(), 9), np.uint8)


def unpacked_names(packed: np.ndarray) -> list | dict:
    """The names that `packed_names` packed. zlib.error or ValueError for anything else."""
    return json.loads(zlib.decompress(packed.tobytes()))


def interleaved(weights: np.ndarray) -> np.ndarray:
    """Recurrent weights, (4H, H), a row for each gate and unit, so that a processor multiplies four columns
    of many rows at once: (H/4, 4H, 4)."""
    rows, columns = weights.shape
    return weights.reshape(rows, columns // 4, 4).transpose(1, 0, 2)


def _aligned(at: int) -> int:
    return at + -at % _ALIGNMENT


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
