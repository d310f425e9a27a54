"""The kernel that the tests boot, and how many operations they try."""

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

pytest.register_assert_rewrite("partitions")
KERNEL = Path(__file__).resolve().parent
# The default of each amount: for make test, and with --soak.
VERSION = re.compile(r"\d+\.\d+")
AMOUNTS = {"partitions": (4, 64), "rounds": (10, 1000), "ops": (3000, 100_000)}


def pytest_addoption(parser):
    option = parser.addoption
    option("--kernel", metavar="VERSION|FOLDER", help="of Linux, as for kernel/build, or what that printed")
    option("--soak", action="store_true", help="for hours, on the debug kernel; KSM's tests, too")
    option("--stock", type=Path, metavar="FOLDER", help="a kernel with the same results of KSM's tests")
    option("--partitions", type=int, metavar="N", help="how many HotMem partitions (4, --soak 64)")
    option("--rounds", type=int, metavar="N", help="of random activity in partitions (10, --soak 1000)")
    option("--ops", type=int, metavar="N", help="random operations on advised pages (3000, --soak 100000)")
    option("--seed", type=int, metavar="N", help="of all that is random (default: another one each time)")
    option("--append", default="", metavar="ARGS", help="more parameters of the kernel with partitions")


def pytest_configure(config):
    option = config.option
    config.addinivalue_line("markers", "soak: left out but for --soak")
    if option.seed is None:
        option.seed = random.randrange(1 << 31)
    for name, (usual, soak) in AMOUNTS.items():
        if getattr(option, name) is None:
            setattr(option, name, soak if option.soak else usual)


def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if item.get_closest_marker("soak") and not config.option.soak]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(f"seed {config.option.seed} (--seed)")


@pytest.fixture(scope="session")
def kernel(pytestconfig):
    """The folder that kernel/build printed: bzImage, headers in include, the series' own selftests."""
    asked = pytestconfig.option.kernel
    folder = Path(asked or "")
    if not asked or VERSION.fullmatch(asked):
        command = [KERNEL / "build", *(["--kernel", asked] if asked else [])]
        command += ["--debug"] if pytestconfig.option.soak else []
        # Not captured, so that the user sees that it is being built, which takes minutes.
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            built = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        folder = Path(built.stdout.strip())
        os.utime(folder)  # marks it as used now, so that it is not pruned
    if not (folder / "bzImage").exists():
        pytest.exit(f"{folder} has no bzImage; kernel/build prints a folder that has", 2)
    return folder


@pytest.fixture(scope="session")
def linux(kernel):
    """The version of Linux whose patches the kernel has."""
    config = (kernel / "config").read_text()
    return re.search(r"^# Linux/\w+ (\d+\.\d+)\S* Kernel Configuration$", config, re.M)[1]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """compiled(NAME, SOURCES, FLAGS...): a program for the guest."""
    folder = tmp_path_factory.mktemp("programs")

    def compile(name, sources, *flags):
        command = ["gcc", "-O2", *sources, "-o", folder / name, *flags]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert not done.returncode, done.stderr
        return folder / name

    return compile
