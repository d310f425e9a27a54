"""Debian 12's Podman, with storage of its own."""

import contextlib
import pathlib

from node import run

CDI = pathlib.Path("/run/cdi")
# Podman's defaults fail where a process may not raise its limits.
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


class Podman:
    """Podman with storage of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.command = ["podman", "--root", folder / "root", "--runroot", folder / "run"]
        self.command += ["--tmpdir", folder / "tmp"]
        self.command += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]

    def __call__(self, *words, **more):
        return run(*self.command, *words, **more)

    def run(self, image, *words, devices=(), volumes=(), detach=False, **variables):
        options = ["--network", "none", *LIMITS]
        for volume in volumes:
            options += ["--volume", volume]
        for device in devices:
            options += ["--device", f"mayfly.dev/{device}"]
        for name, value in variables.items():
            options += ["--env", f"{name}={value}"]
        options += ["--detach"] if detach else ["--rm"]
        return self("run", *options, f"localhost/{image}", *words)

    def start(self, image, *words, **more):
        """Starts a container in the background; returns its ID and its first process."""
        name = self.run(image, *words, detach=True, **more).strip()
        return name, int(self("inspect", "--format", "{{.State.Pid}}", name))

    @contextlib.contextmanager
    def running(self, image, *words, **more):
        """As `start`; the container ends with the block."""
        name, process = self.start(image, *words, **more)
        try:
            yield name, process
        finally:
            self.end(name)

    def end(self, *names):
        with contextlib.suppress(AssertionError):
            self("rm", "--force", "--time", "0", *names)
