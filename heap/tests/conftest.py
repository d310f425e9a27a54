"""Options of the heap's tests: the library to preload, and the length of random tests."""

from pathlib import Path

import pytest
from preloaded import ROOT, Heap


def pytest_addoption(parser):
    option = parser.addoption
    option("--lib", type=Path, default=ROOT / "target/release/libmayfly_heap.so", help="the heap's library")
    option("--without", action="store_true", help="preload nothing, to check the tests themselves")
    option("--spans", choices=["cells", "lines"], help="span layout, passed on as MAYFLY_HEAP_SPANS")
    option("--seconds", type=float, default=10, help="length of the stress run (10)")
    option("--fuzz-seconds", type=float, default=5, help="length of the interface fuzzing (5)")
    option("--seed", type=int, default=1, help="of stress and fuzzing (1)")
    option("--libfuzzer", type=int, metavar="SECONDS", help="also fuzz, with clang's libFuzzer")
    option(
        "--overcommit", action="store_true", help="also test vm.overcommit_memory=2, a setting of the machine"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "only_with(option): left out unless the option is given")


def pytest_collection_modifyitems(config, items):
    """Tests that are long or change a setting of the machine run only with their option."""
    left_out = [i for i in items if any(not config.getoption(m.args[0]) for m in i.iter_markers("only_with"))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def heap(pytestconfig):
    library = None if pytestconfig.option.without else pytestconfig.option.lib.resolve()
    if library and not library.is_file():
        pytest.exit(f"no library {library}; build it with: cargo build --release -p mayfly_heap", 2)
    return Heap(library, pytestconfig.option.spans)
