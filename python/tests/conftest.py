"""The page store that tests run against."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.merge.store import running  # noqa: E402


@pytest.fixture(scope="module")
def store():
    """A `mayfly share`; yields the environment variables of its clients."""
    with running() as started:
        yield started.environment()
