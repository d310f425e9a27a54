"""The tests' equipment: programs and images made from this machine's files (no registry), a `mayfly node`,
and readers of a process's memory in /proc."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = pathlib.Path(os.environ.get("MAYFLY_BIN", ROOT / "target/release"))
MUSL_LOADER = "/lib/ld-musl-x86_64.so.1"
PAGES = "/bin/pages"
MIB = 1 << 20


def until(condition, what, seconds=90.0):
    """Polls until the condition, which other processes cause, is true; returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what() if callable(what) else what}"
        time.sleep(0.1)
    return value


def run(*command, **more):
    """Runs a command and returns its standard output; if it fails, its output is the assertion's text."""
    more = {"timeout": 180, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    done = subprocess.run([str(word) for word in command], **more)
    line = " ".join(map(str, command))
    assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def compile_programs(folder):
    """Compiles pages for glibc, musl and static; contexts (two builds) and forks for glibc; static evil."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    sources = HERE / "programs"
    run("gcc", *flags, "-o", folder / "pages-glibc", sources / "pages.c")
    for build in (1, 2):
        contexts = folder / f"contexts-{build}"
        run("gcc", *flags, f"-DBUILD={build}", "-Wl,--build-id", "-o", contexts, sources / "contexts.c")
    run("gcc", *flags, "-o", folder / "forks", sources / "forks.c")
    run("musl-gcc", *flags, "-o", folder / "pages-musl", sources / "pages.c")
    run("musl-gcc", *flags, "-static", "-o", folder / "pages-static", sources / "pages.c")
    run("musl-gcc", *flags, "-static", "-o", folder / "evil", sources / "evil.c")
    return folder


def libraries_of(program):
    """The libraries that a program on glibc needs, and those that Mayfly's from target/release need."""
    unwinder = run("gcc", "-print-file-name=libgcc_s.so.1").strip()
    own = re.findall(r"(/\S+) \(0x", run("ldd", program))
    return [*own, f"/lib/x86_64-linux-gnu/{pathlib.Path(unwinder).name}"]


def root_folder(folder, programs, libc):
    """Makes a container's root: busybox (static) for the shell, and the test programs for one C library."""
    for name in ("bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sys", "tmp", "usr/lib", "var"):
        (folder / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "bin/busybox")
    for name in ("sh", "cat", "sleep", "env", "ls", "true"):
        (folder / "bin" / name).symlink_to("busybox")
    shutil.copy(programs / f"pages-{libc}", folder / PAGES.strip("/"))
    shutil.copy(programs / "pages-static", folder / "bin/pages-static")
    shutil.copy(programs / "evil", folder / "bin/evil")
    for name in ("contexts-1", "contexts-2", "forks"):
        shutil.copy(programs / name, folder / "bin")
    files = [MUSL_LOADER] if libc == "musl" else libraries_of(programs / "pages-glibc")
    for file in files:
        target = folder / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(file), target)
    return folder


def oci_archive(folder, name, archive):
    """Makes an image of a root folder in OCI's layout, as a tar that containerd imports."""
    layout = archive.with_suffix(".layout")
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data):
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    layer_tar = archive.with_suffix(".layer")
    reproducible = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    run("tar", *reproducible, "-cf", layer_tar, "-C", folder, ".")
    layer = blob(layer_tar.read_bytes())
    layer_tar.unlink()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    image = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{image}.manifest.v1+json",
        "config": {"mediaType": f"{image}.config.v1+json"} | blob(json.dumps(config).encode()),
        "layers": [{"mediaType": f"{image}.layer.v1.tar"} | layer],
    }
    described = {"mediaType": manifest["mediaType"]} | blob(json.dumps(manifest).encode())
    described["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.split(":")[-1],
    }
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    run("tar", "-cf", archive, "-C", layout, ".")
    shutil.rmtree(layout)
    return archive


class Agent:
    """A `mayfly node` with a folder of its own."""

    def __init__(self, folder, *arguments, cdi="none", nri="none", environment=None):
        self.folder, self.arguments, self.cdi, self.nri = pathlib.Path(folder), arguments, cdi, nri
        self.environment = os.environ | (environment or {})
        self.data = self.folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.process = None

    def start(self):
        command = [BIN / "mayfly", "node", "--data", self.data, "--cdi", self.cdi, "--nri", self.nri]
        command += ["--listen", self.address, "--store-limit", "1GiB", "--musl", musl_libraries()]
        command += self.arguments
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
        until(self.is_healthy, self.log)
        return self

    def is_healthy(self):
        assert self.process.poll() is None, self.log()
        with contextlib.suppress(OSError):
            return self.get("/healthz") == "ok\n"

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=20) as response:
            return response.read().decode()

    def metrics(self):
        """/metrics as a dictionary: name with labels to value."""
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def log(self):
        return re.sub(r"\x1b\[[0-9;]*m", "", (self.folder / "log").read_text(errors="replace"))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()
        if self.process and self.process.poll() is None:
            self.kill()


def musl_libraries():
    return os.environ.get("MAYFLY_MUSL", ROOT / "target/portable/musl")


def shared(process):
    """MiB of a store's pages that a process maps, and its part of them: (mapped, proportional)."""
    mapped = proportional = 0
    counts = False
    try:
        text = pathlib.Path(f"/proc/{process}/smaps").read_text()
    except OSError:
        return 0, 0
    for line in text.splitlines():
        first = line.split(" ", 1)[0]
        if not first.endswith(":"):
            counts = "/memfd:mayfly-pages" in line
        elif counts and first == "Rss:":
            mapped += int(line.split()[1])
        elif counts and first == "Pss:":
            proportional += int(line.split()[1])
    return mapped / 1024, proportional / 1024


@contextlib.contextmanager
def scratch():
    """A temporary folder that every user may read: containers have other users."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-node-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
