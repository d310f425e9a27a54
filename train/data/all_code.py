"""The names of all the code of a file, whether a profile saw it or not. `mayfly` finds them when a model is
made, if the file is still the one that ran; they are cached for the next model, by build-id."""

import os
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from train import progress

COMMAND = "MAYFLY_COMMAND"
"""The variable in which `mayfly train` passes its own path; without it only code that profiles saw has
names."""
VERB = "names-of"
_KEPT_S = 30 * 24 * 3600
"""After its last use."""


def tables_of(files: Iterable[tuple[str, str]]) -> dict[str, Path]:
    """The tables of these files, given as build-id and path, by build-id. A file that is absent, or of
    another build, has none. Tables that are not cached are made, several at once."""
    command, folder = os.environ.get(COMMAND), _folder()
    if not command or not folder:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    _remove_old(folder)
    known = {build_id: folder / f"{build_id}.parquet" for build_id, _ in files if build_id}
    missing = {build_id: path for build_id, path in files if build_id and not _is_in_use(known[build_id])}
    named = 0

    def name(item: tuple[str, str]) -> None:
        nonlocal named
        build_id, path = item
        # It refuses a file that is missing or of another build: then there is no table.
        subprocess.run([command, VERB, path, build_id, known[build_id]], capture_output=True)
        named += 1
        progress.detail(f"{named} of {len(missing)}: {Path(path).name}")

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        list(workers.map(name, missing.items()))
    return {build_id: path for build_id, path in known.items() if path.exists()}


def _folder() -> Path | None:
    cache = os.environ.get("XDG_CACHE_HOME") or (
        os.environ.get("HOME") and Path(os.environ["HOME"], ".cache")
    )
    return Path(cache, "mayfly", "code") if cache else None


def _is_in_use(table: Path) -> bool:
    try:
        os.utime(table)
    except OSError:
        return False
    return True


def _remove_old(folder: Path) -> None:
    for table in folder.glob("*.parquet"):
        if time.time() - table.stat().st_mtime > _KEPT_S:
            table.unlink(missing_ok=True)
