"""Packages: two builds are equal, and a package installs, upgrades and is purged without a trace."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = os.environ.get("MAYFLY_BINARIES", ROOT / "target/release")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: packages are installed in a root of their own"
)


def run(*words, **more):
    more = {"timeout": 900} | more
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")]
    for folder in folders:
        environment = {**os.environ, "MAYFLY_PACKAGES": str(folder)}
        run(ROOT / "deploy/packages", "--binaries", BINARIES, env=environment)
    return folders


@pytest.fixture(scope="module")
def package(packages):
    return next(packages[0].glob("*.deb"))


@pytest.fixture(scope="module")
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


@contextlib.contextmanager
def mounted(folder):
    places = [("proc", "proc"), ("tmpfs", "run"), ("tmpfs", "dev/shm")]
    try:
        for kind, place in places:
            run("mount", "-t", kind, kind, folder / place)
        yield
    finally:
        for _, place in reversed(places):
            subprocess.run(["umount", "--lazy", str(folder / place)], check=False)


def inside(system, *words, **more):
    return run("chroot", system, *words, **more)


def installed(system):
    """Mayfly's paths, without the records of apt and dpkg."""
    found = inside(system, "find", "/", "-xdev", "-iname", "*mayfly*", "-not", "-path", "/proc/*").split()
    return [path for path in found if not path.startswith(("/var/lib/dpkg", "/var/cache/apt", "/tmp"))]


def test_two_builds_are_the_same(packages):
    first, second = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        for folder in packages
    )
    assert len(first) == 3
    assert first == second


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


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.05)


def test_the_wheel_brings_heap_and_sharing(packages, tmp_path):
    wheel = next(packages[0].glob("*.whl"))
    assert wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
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
    wrong = subprocess.run([python, "-m", "mayfly"], capture_output=True, text=True, cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")


@pytest.mark.skipif(not shutil.which("podman"), reason="needs podman")
def test_podman_takes_the_image_and_runs_it(packages):
    short = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-"))  # Podman takes no long paths
    image = next(packages[0].glob("*.oci.tar"))
    command = ["podman", "--root", short / "root", "--runroot", short / "run", "--tmpdir", short / "tmp"]
    command += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]
    try:
        assert "mayfly-node" in run(*command, "load", "-i", image)
        name = run(*command, "images", "--format", "{{.Repository}}:{{.Tag}}").split()[0]
        options = ["--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
        assert run(*command, "run", *options, name, "--version").startswith("mayfly ")
    finally:
        subprocess.run([*command, "rmi", "--all", "--force"], capture_output=True, check=False)
        subprocess.run(["umount", "--lazy", str(short / "root/overlay")], capture_output=True, check=False)
        shutil.rmtree(short, ignore_errors=True)
