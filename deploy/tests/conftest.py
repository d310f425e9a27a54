"""The packages, built twice, and a fresh Debian to install them in.

Takes the command from target/release; MAYFLY_BINARIES names another folder. With MAYFLY_PACKAGES_BUILT the
packages of this folder, which `make packages` has made, are tested, beside a second
build of the same command.
"""

import os
import pathlib
import shutil

import pytest
from roots import mounted, run

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root: packages are installed in a root of their own")
    made = os.environ.get("MAYFLY_PACKAGES_BUILT")
    binaries = pathlib.Path(made, "build/release") if made else ROOT / "target/release"
    binaries = os.environ.get("MAYFLY_BINARIES", binaries)

    def build(name):
        folder = tmp_path_factory.mktemp(name)
        environment = {**os.environ, "MAYFLY_PACKAGES": str(folder)}
        run(ROOT / "deploy/packages", "--binaries", binaries, env=environment)
        return folder

    return [pathlib.Path(made) if made else build("first"), build("second")]


@pytest.fixture(scope="session")
def package(packages):
    return next(packages[0].glob("mayfly_*.deb"))


@pytest.fixture(scope="session")
def system(tmp_path_factory):
    """A fresh Debian with the package's dependencies only."""
    folder = tmp_path_factory.mktemp("system") / "root"
    sources = run(ROOT / "deploy/sources")
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--include=libstdc++6,libgcc-s1,python3"]
    command += ["--keyring=/usr/share/keyrings", "--format=directory", "--quiet", "", str(folder), "-"]
    run(*command, input=sources)
    with mounted(folder):
        yield folder
    shutil.rmtree(folder)
