"""Packages: two builds are equal, and a package installs, upgrades and is purged without a trace."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import time
import zipfile

import pytest
from roots import inside, installed, run

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: packages are installed in a root of their own"
)


def test_two_builds_are_the_same(packages):
    first, second = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("mayfly[_-]*.*")}
        for folder in packages
    )
    first = {name: digest for name, digest in first.items() if not name.startswith("mayfly-build-")}
    kinds = ["deb", "deb", "deb", "rpm", "tar", "tar", "tgz", "whl", "whl"]
    assert sorted(name.rsplit(".")[-1] for name in first) == kinds
    assert first == second


@pytest.mark.skipif(
    not os.environ.get("MAYFLY_PACKAGES_BUILT"),
    reason="all libraries are built once more, which takes minutes: make packages",
)
def test_libraries_are_the_same_wherever_they_are_built(tmp_path):
    """Built in another folder, with nothing of the first build: no path and no time is in them."""
    copy = tmp_path / "elsewhere/with-a-longer-name"
    copy.mkdir(parents=True)
    tracked = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
    for name in filter(None, tracked):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    environment = {key: value for key, value in os.environ.items() if key != "MAYFLY_PORTABLE"}
    run(copy / "deploy/libraries", env=environment, timeout=3600)

    def contents(root):
        files = sorted((root / "target/portable").glob("*/libmayfly_*.so"))
        return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    everywhere = {"libmayfly_heap.so", "libmayfly_merge.so", "libmayfly_merge_auto.so"}
    made = {"glibc": everywhere | {"libmayfly_rest.so"}, "musl": everywhere}
    assert contents(copy).keys() == {
        f"target/portable/{libc}/{name}" for libc, names in made.items() for name in names
    }
    assert contents(copy) == contents(ROOT)
    for file in (copy / "target/portable").glob("*/libmayfly_*.so"):
        text = file.read_bytes()
        for path in (str(tmp_path), str(pathlib.Path.home() / ".cargo"), str(ROOT)):
            assert path.encode() not in text, f"{file.name} has {path} in it"


def test_it_installs_upgrades_under_a_client_and_is_purged(system, package):
    before = installed(system)
    shutil.copy(package, system / "tmp/mayfly.deb")
    inside(system, "dpkg", "-i", "/tmp/mayfly.deb")
    assert inside(system, "mayfly", "--version").startswith("mayfly ")
    # The heap by the command, and by the loader's search path.
    assert (
        "heap"
        in subprocess.run(
            ["chroot", system, "mayfly", "run", "--stats", "--", "/bin/true"], capture_output=True, text=True
        ).stderr
    )
    maps = "print(open('/proc/self/maps').read())"
    assert "libmayfly_heap.so" in inside(system, "env", "LD_PRELOAD=libmayfly_heap.so", "python3", "-c", maps)
    for page in ("mayfly", "mayfly-run", "mayfly-node"):
        assert (system / f"usr/share/man/man1/{page}.1.gz").is_file()
    assert "mayfly" in (system / "usr/share/bash-completion/completions/mayfly").read_text()

    # A store with a client; the package is installed again while both run.
    store = subprocess.Popen(["chroot", system, "mayfly", "share"], stderr=subprocess.DEVNULL)
    try:
        socket = system / "run/mayfly/share.socket"
        until(socket.exists, "the store's socket")
        advise = (
            "import ctypes, mmap; size = 8 << 20; m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE);"
            "m.write(bytes([7]) * size);"
            "at = ctypes.addressof(ctypes.c_char.from_buffer(m));"
            "library = ctypes.CDLL('libmayfly_merge.so', use_errno=True);"
            "advised = library.mayfly_advise(ctypes.c_void_p(at), ctypes.c_size_t(size), 0);"
            "print(advised, ctypes.get_errno(), flush=True); input();"
            "print(m[:] == bytes([7]) * size)"
        )
        client = subprocess.Popen(
            ["chroot", system, "python3", "-c", advise],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        advised = client.stdout.readline().split()
        inside(system, "dpkg", "-i", "/tmp/mayfly.deb")
        assert store.poll() is None
        assert client.communicate("\n", timeout=60)[0].strip() == "True"
        assert int(advised[0]) >= 0, advised
    finally:
        store.terminate()
        store.wait()

    inside(system, "dpkg", "--purge", "mayfly")
    left = [path for path in installed(system) if path not in before and not path.startswith("/run")]
    assert left == []


def test_messages_lead_to_the_package_that_builds_guests(system, package, packages):
    """Without mayfly-guest they name it; with it the scripts are found."""

    def asked(*words):
        command = ["chroot", system, "env", "HOME=/tmp", "mayfly", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr

    [guest] = packages[0].glob("mayfly-guest_*.deb")
    for file in (package, guest):
        shutil.copy(file, system / "tmp" / file.name)
    inside(system, "dpkg", "-i", f"/tmp/{package.name}")
    try:
        assert "build it once with: mayfly vm image" in asked("vm", "boot")
        assert "install Debian's package mayfly-guest" in asked("vm", "image")
        assert "install Debian's package mayfly-guest" in asked("sim", "--", "churn")
        inside(system, "dpkg", "--force-depends", "-i", f"/tmp/{guest.name}")
        assert "image: mmdebstrap is missing" in asked("vm", "image")
        assert "in-debian-12: mmdebstrap is missing" in asked("sim", "--", "churn")
        for program in (
            *(system / "usr/lib/mayfly/vm/programs").iterdir(),
            system / "usr/lib/mayfly/sim/guest/init",
        ):
            assert "INTERP" not in run("readelf", "-lW", program), f"{program} is not static"
    finally:
        inside(system, "dpkg", "--purge", "--force-depends", "mayfly-guest", "mayfly")


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.05)


def test_the_wheel_brings_heap_and_sharing(packages, tmp_path):
    [wheel] = packages[0].glob("*-py3-none-manylinux_2_28_x86_64.whl")
    run("/usr/bin/python3", "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nprint(sys.argv[1:], 'libmayfly_heap.so' in open('/proc/self/maps').read())\n"
    )
    assert run(python, "-m", "mayfly", "run", script, "a", "b", cwd=tmp_path) == "['a', 'b'] True\n"
    path = run(python, "-c", "import mayfly; print(mayfly.library.library()._name)", cwd=tmp_path)
    assert path.startswith(str(tmp_path))
    about = zipfile.ZipFile(wheel).read("mayfly_memory-0.1.0.dist-info/METADATA").decode()
    for line in (
        "Name: mayfly-memory",
        "License-Expression: MIT OR Apache-2.0",
        "# mayfly: share the memory",
    ):
        assert f"\n{line}" in about, about
    wrong = subprocess.run([python, "-m", "mayfly"], capture_output=True, text=True, cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_the_wheel_for_musl_needs_no_other_libc(packages, tmp_path):
    [wheel] = packages[0].glob("*-py3-none-musllinux_1_2_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    libraries = sorted((tmp_path / "mayfly").glob("*.so"))
    assert [path.name for path in libraries] == [
        f"libmayfly_{name}.so" for name in ("heap", "merge", "merge_auto")
    ]
    for library in libraries:
        assert "GLIBC_" not in run("objdump", "-T", library), library
