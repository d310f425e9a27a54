"""Mayfly from Python: share the memory of a model, or of any large constant data, with the other instances
on a machine.

    model = load_model()
    mayfly.pack(model)      # weights onto pages of their own
    mayfly.advise(model)    # every identical page is shared, copy-on-write, when this returns

It needs a page store (`mayfly share`) or a kernel with UPM. docs/merge.md has the rest.
"""

from mayfly.advice import Pending, advise, unadvise
from mayfly.growth import advise_process, advising
from mayfly.library import MergeError, load_early, path, stats
from mayfly.packing import pack
from mayfly.turns import later

__all__ = [
    "MergeError",
    "Pending",
    "advise",
    "advise_process",
    "advising",
    "later",
    "pack",
    "path",
    "stats",
    "unadvise",
]

load_early()
