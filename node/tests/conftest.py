"""Programs, images, Podman's storage and a containerd 2, each made once a session."""

import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from containerd2 import Containerd, process_of
from containerd2 import programs as containerd_programs
from go_programs import Missing
from podman4 import Podman

import node
from node import oci_archive, run, scratch, until


def pytest_collection_modifyitems(items):
    """Without libraries for musl, its programs run unchanged: tests of injections into them are left out."""
    if pathlib.Path(node.musl_libraries()).is_dir():
        return
    for item in items:
        parameters = getattr(item, "callspec", None)
        if item.get_closest_marker("musl") or (parameters and parameters.params.get("libc") == "musl"):
            item.add_marker(pytest.mark.skip(reason="no Rust for musl, so no libraries for it"))


def pytest_configure(config):
    config.addinivalue_line("markers", "musl: injects the libraries for musl")


@pytest.fixture(scope="session")
def programs():
    with node.scratch() as folder:
        yield node.compile_programs(folder / "programs")


@pytest.fixture(scope="session")
def roots(programs):
    """Container roots by C library."""
    with node.scratch() as folder:
        yield {libc: node.root_folder(folder / libc, programs, libc) for libc in ("glibc", "musl")}


@pytest.fixture(scope="session")
def podman(roots):
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"):
        pytest.skip("needs root, podman and runc")
    with scratch() as folder:
        podman = Podman(folder)
        for libc, root in roots.items():
            archive = folder / f"{libc}.tar"
            run("tar", "-cf", archive, "-C", root, ".")
            podman("import", archive, f"localhost/{libc}")
        try:
            podman.run("glibc", "/bin/true")
        except AssertionError as why:
            pytest.skip(f"podman runs no container here: {str(why)[-300:]}")
        try:
            yield podman
        finally:
            podman("rm", "--all", "--force", "--time", "0")
            podman("rmi", "--all", "--force")
            for mount in ("root/overlay", "root/vfs"):
                subprocess.run(["umount", "--lazy", folder / mount], capture_output=True)


@pytest.fixture(scope="session")
def started_containerd(roots):
    """Starts a version of containerd once; returns it when it runs containers."""
    if os.geteuid() != 0 or not shutil.which("runc"):
        pytest.skip("needs root and runc")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(version):
            try:
                built = containerd_programs(version)
            except Missing as why:
                return str(why)
            folder = stack.enter_context(scratch())
            containerd = stack.enter_context(Containerd(folder, built))
            for libc, root in roots.items():
                containerd.load(oci_archive(root, f"localhost/{libc}:1", folder / f"{libc}.tar"))
            try:
                pod, _ = containerd.run("probe", "probe", "glibc", "/bin/sleep", "100")
            except AssertionError as why:
                return f"containerd runs no container here: {str(why)[-300:]}"
            containerd.end(pod)
            return containerd

        yield started


@pytest.fixture(scope="session")
def containerd(request, started_containerd):
    """The newest containerd, or the one that a test's parameter names."""
    containerd = started_containerd(getattr(request, "param", "newest"))
    if isinstance(containerd, str):
        pytest.skip(containerd)
    return containerd


class Pods:
    """Starts pods, which end with the test."""

    def __init__(self, containerd):
        self.containerd, self.ids = containerd, []

    def __call__(self, name, namespace, image, *command, labels=None, **annotations):
        """Starts a pod; returns its program's PID."""
        keys = {f"mayfly.dev/{key}": value for key, value in annotations.items()}
        pod, container = self.containerd.run(
            name, namespace, image, *command, annotations=keys, labels=labels
        )
        self.ids.append(pod)
        return until(lambda: process_of(container), f"{name} has a process")


@pytest.fixture
def pods(containerd):
    pods = Pods(containerd)
    yield pods
    for pod in pods.ids:
        containerd.end(pod)
