"""python -m mayfly run SCRIPT.py ARGUMENTS...: runs the script on Mayfly's heap, which packs objects by
lifetime.

MAYFLY_HEAP_* variables are its settings; the heap is MAYFLY_HEAP_LIB, or the one in this package. Python
allocates objects below 512 bytes itself; with PYTHONMALLOC=malloc the heap allocates them as well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "libmayfly_heap.so"


def heap() -> str | None:
    """The heap's library: MAYFLY_HEAP_LIB, in this package, or in this checkout's build folder."""
    named = os.environ.get("MAYFLY_HEAP_LIB")
    package = Path(__file__).resolve().parent
    places = [Path(named)] if named else [package / NAME, package.parents[1] / "target/release" / NAME]
    return next((str(place) for place in places if place.is_file()), None)


def main() -> int:
    """Runs the command line. Returns the script's exit status, or 2 for a wrong command line, 125 without the
    heap, 126 without Python."""
    if len(sys.argv) < 3 or sys.argv[1] != "run" or sys.argv[2] in ("-h", "--help"):
        print(__doc__, file=sys.stderr)
        return 2
    library = heap()
    if library is None:
        print(f"mayfly: {NAME} is not in this package: set MAYFLY_HEAP_LIB to its path", file=sys.stderr)
        return 125
    others = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = f"{library}:{others}" if others else library
    try:
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    except OSError as error:
        print(f"mayfly: {sys.executable}: {error.strerror}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main())
