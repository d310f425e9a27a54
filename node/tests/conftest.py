"""Programs and images are made once a run."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import node


@pytest.fixture(scope="session")
def programs():
    with node.scratch() as folder:
        yield node.compile_programs(folder / "programs")


@pytest.fixture(scope="session")
def roots(programs):
    """Container roots by C library."""
    with node.scratch() as folder:
        yield {libc: node.root_folder(folder / libc, programs, libc) for libc in ("glibc", "musl")}
