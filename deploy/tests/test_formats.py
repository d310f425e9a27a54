"""What each package must be for the tools that take it: lintian, debuggers, rpm, podman."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import pytest
from roots import inside, installed, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
RPM_DATABASE = ["--define", "_dbpath /var/lib/rpm"]


@pytest.mark.skipif(
    not os.environ.get("MAYFLY_PACKAGES_BUILT"),
    reason="a Debian 13 with lintian takes minutes to make: make packages",
)
def test_lintian_finds_no_error(packages, tmp_path):
    run(ROOT / "deploy/lintian", *packages[0].glob("*.deb"))
    # It would: the same package without the overrides.
    tree = tmp_path / "tree"
    [package] = packages[0].glob("mayfly_*.deb")
    run("dpkg-deb", "-R", package, tree)
    overrides = tree / "usr/share/lintian/overrides/mayfly"
    overrides.write_text("# none\n")
    sums = tree / "DEBIAN/md5sums"
    sums.write_text("".join(line for line in sums.open() if "overrides" not in line))
    run("dpkg-deb", "--root-owner-group", "--build", tree, tmp_path / "wrong.deb")
    done = subprocess.run(
        [ROOT / "deploy/lintian", tmp_path / "wrong.deb"], capture_output=True, text=True, check=False
    )
    errors = re.findall(r"^E: mayfly: (\S+)", done.stdout, re.M)
    assert done.returncode != 0 and set(errors) == {"library-not-linked-against-libc"}, done.stdout


def test_each_program_has_its_debug_information(packages, tmp_path):
    """By build ID, or by the name in the file, both as gdb looks for it."""
    for package, folder in (("mayfly_", "root"), ("mayfly-dbgsym_", "debug")):
        run("dpkg-deb", "-x", next(packages[0].glob(f"{package}*.deb")), tmp_path / folder)
    debug = tmp_path / "debug/usr/lib/debug"
    root = tmp_path / "root"
    programs = [path for path in root.rglob("*") if path.suffix == ".so" and not path.is_symlink()]
    programs.append(root / "usr/bin/mayfly")
    assert len(programs) == 8
    found = set()
    for program in programs:
        notes = run("readelf", "-n", program)
        identity = re.search(r"Build ID: ([0-9a-f]{2})([0-9a-f]+)", notes)
        if identity:
            information = debug / f".build-id/{identity[1]}/{identity[2]}.debug"
            assert re.search(r"Build ID: (\S+)", run("readelf", "-n", information))[1] == "".join(
                identity.groups()
            )
        else:
            link = run("readelf", "--string-dump=.gnu_debuglink", program, errors="replace")
            information = debug / program.relative_to(root).parent / re.search(r"\] +(\S+)", link)[1]
        assert ".debug_line" in run("readelf", "-SW", information), information
        assert ".symtab" not in run("readelf", "-SW", program), f"{program} is not stripped"
        found.add(information)
    assert found == {path for path in debug.rglob("*.debug")}


@pytest.mark.skipif(not shutil.which("rpm"), reason="needs rpm")
def test_the_rpm_names_its_libraries_installs_and_is_erased(system, packages):
    [package] = packages[0].glob("*.rpm")
    requires = run("rpm", "-qpR", package).split("\n")
    assert "libc.so.6(GLIBC_2.34)(64bit)" in requires and "libstdc++.so.6()(64bit)" in requires
    # Not musl's libc, no library of this package, and no glibc that RHEL 9 lacks.
    names = {name.split()[0].split("(")[0] for name in requires if name}
    assert names <= {
        *("/bin/sh", "rpmlib", "rtld", "ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2"),
        *("libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6"),
    }, names
    assert max(map(int, re.findall(r"GLIBC_2\.(\d+)", " ".join(requires)))) <= 34
    files = set(run("rpm", "-qpl", package).split())
    assert {"/usr/bin/mayfly", "/usr/lib/systemd/system/mayfly-worker.service"} <= files
    assert "/usr/lib64/libmayfly_heap.so" in files
    assert not [path for path in files if path.startswith(("/usr/lib/x86_64", "/usr/share/lintian"))]

    before = installed(system)
    command = ["rpm", "--root", system, *RPM_DATABASE]
    run(*command, "--initdb")
    # The system's packages are dpkg's, which rpm's database does not know.
    run(*command, "--install", "--nodeps", package)
    assert run(*command, "-q", "mayfly").startswith("mayfly-0.1.0-1")
    run(*command, "--verify", "--nodeps", "mayfly")
    assert inside(system, "mayfly", "--version").startswith("mayfly ")
    maps = "print(open('/proc/self/maps').read())"
    preload = "LD_PRELOAD=/usr/lib64/libmayfly_heap.so"
    assert "libmayfly_heap.so" in inside(system, "env", preload, "python3", "-c", maps)
    with pytest.raises(AssertionError, match=r"libc\.so\.6"):
        run(*command, "--install", "--force", package)
    run(*command, "--erase", "mayfly")
    left = [path for path in installed(system) if path not in before and not path.startswith("/run")]
    assert left == []


@contextlib.contextmanager
def podman():
    """Podman with a storage of its own."""
    short = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-"))  # Podman takes no long paths
    command = ["podman", "--root", short / "root", "--runroot", short / "run", "--tmpdir", short / "tmp"]
    command += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]
    try:
        yield command
    finally:
        subprocess.run([*command, "rm", "--all", "--force"], capture_output=True, check=False)
        subprocess.run([*command, "rmi", "--all", "--force"], capture_output=True, check=False)
        subprocess.run(["umount", "--lazy", str(short / "root/overlay")], capture_output=True, check=False)
        shutil.rmtree(short, ignore_errors=True)


@pytest.mark.skipif(not shutil.which("podman"), reason="needs podman")
@pytest.mark.parametrize("name", ["mayfly-node", "mayfly-worker"])
def test_podman_takes_the_image_and_runs_it(packages, name):
    [image] = packages[0].glob(f"{name}-*.oci.tar")
    options = ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    with podman() as command:
        assert name in run(*command, "load", "-i", image)
        local = run(*command, "images", "--format", "{{.Repository}}:{{.Tag}}").split()[0]
        assert run(*command, "run", "--rm", *options, local, "--version").startswith("mayfly ")
        if name == "mayfly-node":
            return
        # The worker serves with nothing but its image.
        run(*command, "run", "--detach", "--name", "worker", "--privileged", *options, local)
        pid = run(*command, "inspect", "--format", "{{.State.Pid}}", "worker").strip()
        try:
            ask = ["nsenter", "--net", "--target", pid, "curl", "-sf", "http://127.0.0.1:8080/healthz"]
            end = time.monotonic() + 60
            while subprocess.run(ask, capture_output=True, check=False).returncode:
                assert time.monotonic() < end, run(*command, "logs", "worker", stderr=subprocess.STDOUT)
                time.sleep(0.2)
            run(*command, "stop", "--time", "30", "worker")
            assert run(*command, "inspect", "--format", "{{.State.ExitCode}}", "worker").strip() == "0"
        finally:
            subprocess.run([*command, "kill", "worker"], capture_output=True, check=False)
