"""Which image is taken: the builder is one of the test, that makes a folder for each version at once."""

import os
import pathlib
import subprocess

import pytest
from command import ROOT

BUILDER = """#!/bin/sh
echo "$@" >> {folder}/asked
[ -z "$REFUSED" ] || exit 1
linux=6.12
while [ $# -gt 0 ]; do [ "$1" = --linux ] && linux=$2; shift; done
image={folder}/mayfly/image/stock-$linux
mkdir -p $image
echo a kernel > $image/kernel
echo an initrd > $image/initrd
echo '{{"kernel": "kernel", "initrd": "initrd", "linux": "'$linux'"}}' > $image/vm.json
echo $image
"""


@pytest.fixture
def mayfly(tmp_path):
    """mayfly(WORDS...) runs it with a cache of its own; `asked` and `links` are what it left there."""
    builder = tmp_path / "builder"
    builder.write_text(BUILDER.format(folder=tmp_path))
    builder.chmod(0o755)
    program = os.environ.get("MAYFLY", str(ROOT / "target/release/mayfly"))
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path), MAYFLY_VM_IMAGE_BUILDER=str(builder))

    def run(*words, **variables):
        own = environment | variables
        return subprocess.run(
            [program, *words], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300
        )

    run.asked = lambda: (tmp_path / "asked").read_text().splitlines()
    cache = tmp_path / "mayfly/image"
    run.links = lambda: {path.name: os.readlink(path).rpartition("-")[2] for path in cache.glob("latest-*")}
    return run


def test_last_built_image_is_the_default_and_each_version_stays(mayfly):
    assert mayfly("vm", "image").returncode == 0
    built = mayfly("vm", "image", "--linux", "7.3")
    assert built.returncode == 0 and pathlib.Path(built.stdout.strip()).name == "stock-7.3"
    assert mayfly.asked() == ["--kernel stock", "--kernel stock --linux 7.3"]
    assert mayfly.links() == {
        "latest-stock": "7.3",
        "latest-stock-6.12": "6.12",
        "latest-stock-7.3": "7.3",
    }


def test_simulator_takes_the_version_that_it_knows(mayfly, tmp_path):
    assert mayfly("vm", "image", "--linux", "7.3").returncode == 0
    program = tmp_path / "program"
    subprocess.run(
        ["gcc", "-static", "-x", "c", "-", "-o", program], input=b"int main(void) { return 0; }", check=True
    )
    asked = mayfly("sim", "--", "./program", REFUSED="yes")
    assert asked.returncode != 0 and "builder failed" in asked.stderr, asked.stderr
    assert mayfly.asked()[1:] == ["--kernel stock --linux 6.12"]
    assert mayfly.links()["latest-stock"] == "7.3"
