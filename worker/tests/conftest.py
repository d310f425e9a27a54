"""A worker for the tests, started with `mayfly up`, and clients for it."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

import boto3
import botocore.config
import pytest
from calls import open_folder
from xdist.scheduler import LoadScopeScheduling

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TEMPLATE = str(HERE / "functions/template.yaml")
HTTP_APIS = HERE / "functions/http_apis"
MAYFLY = os.environ.get("MAYFLY", str(ROOT / "target/release/mayfly"))
# Few instances, so that the tests run alike on machines of any size.
SETTINGS = {
    "--listen": "127.0.0.1:0",
    "--memory": "1500",
    "--burst": "4",
    "--queue": "200",
    "--queue-wait": "120",
}
# The first start of the sample functions installs their packages.
START_S = 600


class Worker:
    """A running `mayfly up`; `before` is a command line that executes mayfly."""

    def __init__(self, *arguments, environment=None, before=()):
        settings = [word for name in SETTINGS.keys() - set(arguments) for word in (name, SETTINGS[name])]
        self.log_path = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-up-"), "log")
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*(before or [MAYFLY]), "up", *arguments, *settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "NO_COLOR": "1", **(environment or {})},
            )
        # Up to the end of the line, since the log may hold a part of it.
        self.url = self.wait_for(r"serving Lambda's API on (http://\S+)\n", START_S).group(1)
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Stops the worker, which must exit with 0 unless the test failed or has stopped it by itself."""
        ends_here = kind is None and self.process.poll() is None
        code = self.stop(signal.SIGTERM if ends_here else signal.SIGKILL)
        assert not ends_here or code == 0, (code, self.last_log[-3000:])

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_for(self, pattern, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} is not in the log:\n{self.log()[-3000:]}")

    def client(self, key="any", secret="any", service="lambda", **settings):
        return client_at(self.url, key, secret, service, **settings)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def figure(self, name):
        """The sum over all labels of a metric."""
        lines = [line for line in self.get("/metrics").splitlines() if re.match(rf"{name}(\{{| )", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def state(self):
        """Processes, metrics and log, for a failure's message."""
        tree = subprocess.run(
            ["ps", "-o", "pid,ppid,stat,args", "-p", ",".join(map(str, [1, *self.descendants()]))],
            capture_output=True,
            text=True,
        )
        return tree.stdout + self.get("/metrics") + self.log()[-3000:]

    def descendants(self):
        """Processes below the worker without page stores and empty sandboxes: monitors and all processes of
        sandboxes."""
        others = set(self.ready_sandboxes())
        below = descendants(self.process.pid)
        return [process for process in below if process not in others and not is_store(process)]

    def stores(self):
        return [process for process in descendants(self.process.pid) if is_store(process)]

    def ready_sandboxes(self):
        """Processes of empty sandboxes: each one's monitor and process 1, one after the other."""
        found = []
        for process in descendants(self.process.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = pathlib.Path(f"/proc/{process}/stat").read_text()
                if "(mayfly-ready)" in stat:
                    found += [int(stat.rsplit(")", 1)[1].split()[1]), process]
        return found

    def sample(self):
        """The latest sample of memory."""
        return json.loads(self.get("/history"))["samples"][-1]

    def events(self, kind, **fields):
        """Events of this kind with these fields."""
        wanted = {"kind": kind, **fields}.items()
        return [event for event in json.loads(self.get("/events"))["events"] if wanted <= event.items()]

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        if self.log_path.exists():
            self.last_log = self.log()
        shutil.rmtree(self.log_path.parent, ignore_errors=True)
        return code


def client_at(url, key="any", secret="any", service="lambda", **settings):
    settings = {
        "retries": {"max_attempts": 0},
        "read_timeout": 300,
        "max_pool_connections": 32,
        **settings,
    }
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=botocore.config.Config(**settings),
    )


def descendants(parent):
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in pathlib.Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def is_store(process):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:2] == [b"share"]
    return False


def is_alive(process):
    """Whether it runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def cgroups_of(worker_pid):
    """Folders of cgroups that a worker has made. A glob would fail where another worker removes one."""
    named = f"mayfly-worker-{worker_pid}-"
    walked = os.walk("/sys/fs/cgroup")
    return [f"{folder}/{name}" for folder, names, _ in walked for name in names if name.startswith(named)]


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="the long form of tests that have one")


def pytest_configure(config):
    if config.getoption("soak"):
        os.environ["MAYFLY_SOAK"] = "1"


# Files whose tests boot VMs or wait for a minute. They begin first, so that none of them ends long after all
# others; those of one line share a process, since a guest under emulation keeps a processor busy.
FIRST = [
    ["test_cgroup_v2.py", "test_vm.py", "test_vm_streams.py"],
    ["test_vm_extensions.py", "test_vm_template.py", "test_network.py"],
    ["test_schedules.py"],
]


def rank(file):
    """The place of a file's tests in the order in which files begin; that of a line is the same."""
    return next((place for place, files in enumerate(FIRST) if file in files), len(FIRST))


class OneProcessForAFile(LoadScopeScheduling):
    """Of several test processes (`-n`) one runs all tests of a file. xdist's own groups (`--dist loadgroup`)
    are without effect beside pytest 9.2, which has other ids of tests than xdist 3.8 changes."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::")[0].rsplit("/", 1)[-1]
        return FIRST[rank(file)][0] if rank(file) < len(FIRST) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneProcessForAFile(config, log)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: rank(item.path.name))


@pytest.fixture(scope="session")
def worker():
    with Worker(TEMPLATE) as running:
        yield running
    assert not cgroups_of(running.process.pid)


@pytest.fixture(scope="session")
def client(worker):
    return worker.client()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder whose code and images API callers may name."""
    return open_folder(tmp_path_factory, "named")


@pytest.fixture(scope="module")
def running(place):
    """A worker without functions, whose callers may name code and images in `place`."""
    with Worker("--code-from", str(place)) as worker:
        yield worker


@pytest.fixture(scope="module")
def apis():
    """A worker with HTTP APIs."""
    with Worker(str(HTTP_APIS / "template.yaml")) as running:
        yield running
