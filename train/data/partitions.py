"""Chooses the profiles to read: files, or whole data sets. A data set is a folder or a URL such as
s3://bucket/profiles, with folders named KEY=VALUE in it (program=server/build=4f0c/node7.parquet). Hive,
Spark and DuckDB lay out partitions like this; `--where` chooses among them."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pyarrow
import pyarrow.fs
import pyarrow.parquet
from tqdm import tqdm

from train.data import symbols
from train.errors import TrainError

PROFILE = ".parquet"
HINT = "name the .parquet file that 'mayfly profile' wrote, or a folder of them"


@dataclass
class Found:
    """A profile: its name, and its place in a file system. `listed` if it was found in a data set and not
    named."""

    name: str
    path: str
    files: pyarrow.fs.FileSystem
    listed: bool

    @property
    def keys(self) -> dict[str, str]:
        """The keys and values of its folders."""
        pairs = [part.split("=", 1) for part in self.name.split("/")[:-1] if "=" in part]
        return {key: unquote(value) for key, value in pairs}

    @property
    def is_remote(self) -> bool:
        """Whether its name is a URL."""
        return "://" in self.name


@contextlib.contextmanager
def opened(names: list[str], where: str | None, engine: str) -> Iterator[list[str]]:
    """The paths or URLs of the profiles that these names mean, for `engine` to read. Profiles that DuckDB
    cannot reach are copied here, until the block ends. Raises TrainError for a folder without profiles, for
    one that cannot be listed or fetched, and for a `where` that chooses none."""
    named = [name for name in names if not name.endswith(symbols.SUFFIX)]
    if not named:
        raise TrainError("only tables of functions given: name the .parquet files without '.symbols'")
    found = [each for name in named for each in _found(name)]
    if where is not None:
        found = _chosen(found, where)
    found = _without_empty(found)
    with tempfile.TemporaryDirectory(prefix="mayfly-train-") as here:
        try:
            yield [
                each.name if engine == "spark" else _local_copy(each, here) for each in _with_progress(found)
            ]
        except TrainError as error:
            # The error names the original, not the copy.
            raise TrainError(str(error).replace(f"{here}/", "").replace(":/%", "://")) from None


def _found(name: str) -> list[Found]:
    local = pyarrow.fs.LocalFileSystem()
    if "://" not in name:
        if not Path(name).is_dir():
            return [Found(name, name, local, listed=False)]
        root, files = name, local
    else:
        try:
            files, root = pyarrow.fs.FileSystem.from_uri(name)
        except Exception as error:
            if name.endswith(PROFILE):  # an engine may know how to read it
                return [Found(name, name, local, listed=False)]
            raise TrainError(f"{name}: {_line(error)}") from None
        if name.endswith(PROFILE):
            return [Found(name, root, files, listed=False)]
    try:
        listed = files.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    except Exception as error:
        raise TrainError(f"{name}: cannot be listed: {_line(error)}") from None
    paths = sorted(entry.path for entry in listed if entry.is_file and _is_profile(entry.path, root))
    if not paths:
        raise TrainError(f"{name}: no profile in this folder: {HINT}")
    prefix = name.rstrip("/")
    return [Found(prefix + path[len(root.rstrip("/")) :], path, files, listed=True) for path in paths]


def _is_profile(path: str, root: str) -> bool:
    """Names that begin with . or _ are of files that are still being written, or of their writer's notes."""
    hidden = any(part[:1] in "._" for part in path[len(root) :].split("/") if part)
    return path.endswith(PROFILE) and not path.endswith(symbols.SUFFIX) and not hidden


def _chosen(found: list[Found], where: str) -> list[Found]:
    """The profiles for which an SQL expression over the folders' keys is true. A key whose values are all
    integers is compared as a number, as DuckDB and Spark do."""
    keys = list(dict.fromkeys(key for each in found for key in each.keys))
    columns = {}
    for key in keys:
        values = [each.keys.get(key) for each in found]
        whole = all(value is None or value.isdecimal() and len(value) < 19 for value in values)
        columns[key] = [int(value) if whole and value is not None else value for value in values]
    columns["file"] = [each.name for each in found]
    there = f"the folders have {', '.join(keys)}" if keys else "no folder is named KEY=VALUE"
    try:
        with duckdb.connect() as connection:
            rows = connection.from_arrow(pyarrow.table(columns)).filter(where).project('"file"').fetchall()
    except duckdb.Error as error:
        raise TrainError(f"--where {where!r}: {_line(error)}: {there}") from None
    chosen = {name for (name,) in rows}
    if not chosen:
        some = sorted({"/".join(f"{key}={value}" for key, value in each.keys.items()) for each in found})
        shown = ", ".join(some[:5]) + (", …" if len(some) > 5 else "")
        raise TrainError(f"--where {where!r} chooses none of {len(found)} profiles: {shown or there}")
    return [each for each in found if each.name in chosen]


def _without_empty(found: list[Found]) -> list[Found]:
    """Leaves out a data set's profiles of programs that allocated nothing, and prints their names. An empty
    profile that was named is refused later, as is one that cannot be read."""
    kept = [each for each in found if not (each.listed and _is_empty(each))]
    for each in found:
        if each not in kept:
            print(f"mayfly: {each.name}: no contexts: left out", file=sys.stderr)
    if not kept:
        raise TrainError(f"{found[0].name}: no contexts, and none in {len(found) - 1} other profiles")
    return kept


def _is_empty(profile: Found) -> bool:
    try:
        return pyarrow.parquet.read_metadata(profile.path, filesystem=profile.files).num_rows == 0
    except Exception:
        return False


def _with_progress(found: list[Found]) -> Iterator[Found]:
    """The same profiles, with a progress bar where any is fetched."""
    remote = any(each.is_remote for each in found)
    return iter(tqdm(found, "fetching profiles", leave=False, disable=not remote or not sys.stderr.isatty()))


def _local_copy(profile: Found, here: str) -> str:
    """A path that can be opened: for a remote profile that of a copy, with its table of functions."""
    if not profile.is_remote or isinstance(profile.files, pyarrow.fs.LocalFileSystem):
        return profile.name
    copy = Path(here, profile.name.replace("://", ":/%"))
    copy.parent.mkdir(parents=True, exist_ok=True)
    local = pyarrow.fs.LocalFileSystem()
    for of in (str, symbols.beside):
        target = of(str(copy))
        try:
            pyarrow.fs.copy_files(of(profile.path), target, profile.files, local)
        except FileNotFoundError:
            Path(target).unlink(missing_ok=True)  # refused where it is opened
        except Exception as error:
            raise TrainError(f"{profile.name}: cannot be fetched: {_line(error)}") from None
    return str(copy)


def _line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
