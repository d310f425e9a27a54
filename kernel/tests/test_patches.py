"""Each patch applies to its version of Linux with all of its context, in both series and in either alone."""

import re
import subprocess
from pathlib import Path

import pytest

KERNEL = Path(__file__).resolve().parents[1]
VERSIONS = sorted(path.name.removeprefix("config.") for path in KERNEL.glob("config.[0-9]*"))
SERIES = {"both": [], "hotmem": ["--series", "hotmem"], "upm": ["--series", "upm"]}


def printed(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def touched(patches):
    """The files that the patches change."""
    files = re.compile(r"^\+\+\+ b/(.*)", re.M)
    return {file for patch in patches for file in files.findall(Path(patch).read_text())}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def source(version, tmp_path_factory):
    """The files of this version that its patches change."""
    found = subprocess.run([KERNEL / "source", "--there", version], stdout=subprocess.PIPE, text=True)
    if found.returncode:
        pytest.skip(f"the source of Linux {version} is not there (kernel/source {version})")
    at, tarball = tmp_path_factory.mktemp(version), found.stdout.splitlines()[0]
    patches = printed(KERNEL / "build", "--kernel", version, "--list")
    names = [f"linux-source-{version}/{file}" for file in touched(patches)]
    # Files that a patch makes are not in the archive.
    command = ["tar", "-x", "-J", "-f", tarball, "-C", at, "--strip-components", "1", *names]
    subprocess.run(command, stderr=subprocess.DEVNULL)
    assert (at / "mm/ksm.c").exists()
    return at


@pytest.mark.parametrize("series", SERIES)
def test_applies(version, source, series, tmp_path):
    patches = printed(KERNEL / "build", "--kernel", version, *SERIES[series], "--list")
    assert len(patches) >= 6
    subprocess.run(["cp", "-r", source, tmp_path / "tree"], check=True)
    for patch in patches:
        command = ["patch", "-d", tmp_path / "tree", "-p", "1", "-F", "0", "-i", patch]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert not done.returncode, f"{patch}\n{done.stdout}"
