"""The page store and the programs linked with its library, for the tests: each has a store of its own."""

import signal
import time
from types import SimpleNamespace

import pytest
from store import ROOT, Built, Store


def pytest_addoption(parser):
    parser.addoption("--bin", default=ROOT / "target/release", help="where mayfly and libmayfly_merge.so are")
    parser.addoption(
        "--soak",
        action="store_true",
        help="every step, 10^5 random operations, minutes of fuzzing, half an hour of everything (an hour)",
    )
    parser.addoption("--seed", type=int, help="of everything random (default: from the clock)")
    parser.addoption("--operations", type=int, help="of the random tests (default 1500, --soak 100000)")
    parser.addoption("--seconds", type=int, help="of everything at once (--soak: 1800; else it is left out)")


def pytest_configure(config):
    option = config.option
    if option.seed is None:
        option.seed = int(time.time()) % 1_000_000
    option.seconds = option.seconds or (1800 if option.soak else 0)
    option.operations = option.operations or (100_000 if option.soak else 1500)
    # So that stores and clients end with an interrupted run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(f"seed {config.option.seed} (--seed)")


@pytest.fixture(scope="session")
def options(request):
    """The amount of each kind of work, and the seed of the random ones."""
    names = ("soak", "seed", "operations", "seconds")
    return SimpleNamespace(**{name: getattr(request.config.option, name) for name in names})


@pytest.fixture(scope="session")
def built(request):
    """The command, the library, and test programs, which are compiled at first use."""
    return Built(request.config.option.bin)


@pytest.fixture
def store(built):
    """A store that must end on SIGTERM."""
    with Store(built) as running:
        yield running
