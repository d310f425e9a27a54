"""The arrays and buffers behind tables and fitted models: pandas, Arrow, Polars, scikit-learn, SciPy's sparse
matrices. They are recognised by the modules that the program has imported."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any


def is_of(thing: Any, module: str, *names: str) -> bool:
    """Whether it is an instance of one of these classes, without importing the module."""
    loaded = sys.modules.get(module)
    kinds = tuple(kind for name in names if isinstance(kind := getattr(loaded, name, None), type))
    return bool(kinds) and isinstance(thing, kinds)


def parts_of(thing: Any) -> list[Any] | None:
    """The arrays and buffers behind a table or a model; None for anything else."""
    if is_of(thing, "pandas", "DataFrame"):
        return [*map(thing._get_column_array, range(thing.shape[1])), thing.index, thing.columns]
    if is_of(thing, "pandas", "Series"):
        return [thing.array, thing.index]
    if is_of(thing, "pandas", "MultiIndex"):
        return [*thing.levels, *thing.codes]
    if is_of(thing, "pandas", "RangeIndex"):
        return []
    if is_of(thing, "pandas", "Index"):
        return [thing.array]
    if is_of(thing, "pandas.api.extensions", "ExtensionArray"):
        return list(of_extension(thing))
    if is_of(thing, "pyarrow", "Table", "RecordBatch"):
        return list(thing.columns)
    if is_of(thing, "pyarrow", "ChunkedArray"):
        return list(thing.chunks)
    if is_of(thing, "pyarrow", "Array"):
        return [buffer for buffer in thing.buffers() if buffer is not None]
    if is_of(thing, "polars", "DataFrame"):
        return thing.get_columns()
    if is_of(thing, "polars", "Series"):
        return [of_polars(thing)]
    if is_of(thing, "scipy.sparse", "spmatrix", "sparray"):
        return [value for value in vars(thing).values() if is_of(value, "numpy", "ndarray")]
    if is_of(thing, "sklearn.base", "BaseEstimator"):
        return list(vars(thing).values())
    if is_of(thing, "sklearn.tree._tree", "Tree"):
        return [thing.value, thing.threshold]  # views: of all values, and of all nodes
    return None


def of_polars(series: Any) -> Any:
    """A column of Polars as an Arrow array of the same memory, by Arrow's C data interface."""
    try:
        import pyarrow
    except ImportError:
        raise TypeError("the memory of a Polars column is found by pyarrow: install it") from None
    return pyarrow.chunked_array(series)


def stream_of(thing: Any) -> memoryview | None:
    """A frame or a column of Polars as a stream of Arrow's, in one buffer. None where `of_stream` would not
    make an equal one of it, or pyarrow is not installed."""
    polars = sys.modules["polars"]
    # Polars locks a frame while it writes it, and takes the GIL for each piece: a thread that has the GIL and
    # reads the frame would wait for ever. A clone has the same columns and a lock of its own.
    file, frame = io.BytesIO(), thing.to_frame() if is_of(thing, "polars", "Series") else thing.clone()
    try:
        frame.write_ipc_stream(file, compat_level=polars.CompatLevel.newest())
        again = of_stream(file.getbuffer())
    except (ImportError, TypeError, ValueError, polars.exceptions.PolarsError):
        return None
    return file.getbuffer() if again.schema == frame.schema else None


def of_stream(stream: Any, is_column: bool = False) -> Any:
    """The frame or column whose stream it is; its data stay there."""
    import polars
    import pyarrow

    frame = polars.from_arrow(pyarrow.ipc.open_stream(pyarrow.py_buffer(stream)).read_all())
    return frame.to_series() if is_column else frame


def of_extension(array: Any) -> Iterator[Any]:
    """pandas' own arrays: of Arrow, of categories, with a mask, of times."""
    for name in ("_pa_array", "_codes", "_categories", "_data", "_mask", "_ndarray", "_left", "_right"):
        if (part := getattr(array, name, None)) is not None:
            yield part
