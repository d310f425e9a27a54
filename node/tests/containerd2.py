"""containerd 2, its shim and a small CRI client, built from Go modules and cached by the sources' hash.

There are two versions: the oldest that the agent supports, whose NRI is 0.8, and the newest, whose NRI has a
call for each event of a container. To raise one, change its line in containerd/VERSION/go.mod and run
`go mod tidy` there.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

from go_programs import built

from node import HERE, run, until

SOURCES = HERE / "containerd"
TAGS = "no_btrfs,no_zfs,no_aufs,no_devmapper,no_tracing"


def programs(version="newest"):
    """The folder with `containerd` and `shim` of a version, and the path of the newest's CRI client."""
    if version == "oldest":
        return built("containerd/oldest", SOURCES / "oldest", ["./containerd", "./shim"], TAGS), programs()[1]
    packages = ["./containerd", "./shim", "./cri", "./preload"]
    folder = built("containerd/newest", SOURCES / "newest", packages, TAGS)
    return folder, folder / "cri"


class Containerd:
    """A containerd for the tests, with folders and sockets of its own and no network."""

    def __init__(self, folder, programs):
        self.folder = folder
        self.programs, self.client = programs
        self.socket, self.nri = folder / "containerd.sock", folder / "nri.sock"
        self.process = None

    def configuration(self):
        return f"""
version = 3
root = "{self.folder}/root"
state = "{self.folder}/state"
[grpc]
address = "{self.socket}"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/glibc:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_cdi = false
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{self.programs}/shim"
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{self.nri}"
plugin_path = "{self.folder}/nri/plugins"
plugin_config_path = "{self.folder}/nri/conf"
"""

    def __enter__(self):
        config = self.folder / "config.toml"
        config.write_text(self.configuration())
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "containerd", "--config", config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def is_ready():
            assert self.process.poll() is None, self.own_log()
            return self.socket.exists() and self.nri.exists() and "successfully booted" in self.own_log()

        until(is_ready, self.own_log, 180)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        # Its shims run on.
        for pid in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(pid / "exe") == str(self.programs / "shim") and str(self.socket) in (
                    pid / "cmdline"
                ).read_text() + (pid / "environ").read_text(errors="replace"):
                    os.kill(int(pid.name), signal.SIGKILL)
        mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "--lazy", mount], capture_output=True)

    def own_log(self):
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def cri(self, *words, **more):
        return run(self.client, self.socket, *words, **more)

    def load(self, archive):
        return self.cri("import", archive)

    def run(self, name, namespace, image, *command, annotations=None, environment=None, labels=None):
        """Starts a pod with one container; returns the IDs of both."""
        pod = {
            "Name": name,
            "Namespace": namespace,
            "UID": f"{namespace}-{name}",
            "Image": f"localhost/{image}:1",
            "Logs": str(self.folder / "logs"),
            "Annotations": annotations or {},
            "Labels": labels or {},
            "Environment": environment or {},
            "Command": list(command),
        }
        made = json.loads(self.cri("run", input=json.dumps(pod)))
        return made["pod"], made["container"]

    def log(self, name):
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def end(self, pod):
        self.cri("end", pod)


@contextlib.contextmanager
def preload_plugin(containerd, index, *more):
    """Another NRI plugin that sets LD_PRELOAD of each container to `/opt/other.so`, while this lasts."""
    command = [containerd.client.with_name("preload"), containerd.nri, index, "/opt/other.so", *more]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([str(word) for word in command], **pipes, text=True) as plugin:
        assert plugin.stdout.readline() == "accepted\n"
        yield


def process_of(container):
    """The first process of a container (the lowest PID in its cgroup), once it runs the program."""
    # Cgroups may disappear during the walk; pathlib's rglob fails then.
    for folder, _, files in os.walk("/sys/fs/cgroup"):
        if container in os.path.basename(folder) and "cgroup.procs" in files:
            with contextlib.suppress(OSError):
                if pids := pathlib.Path(folder, "cgroup.procs").read_text().split():
                    first = min(map(int, pids))
                    return first if runs_its_program(first) else 0
    return 0


def runs_its_program(pid):
    """Whether this process of a container is runc no more: it is for a while after the runtime has said that
    the container was started, with no variable of the container yet."""
    return "runc" not in os.readlink(f"/proc/{pid}/exe")
