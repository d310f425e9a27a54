"""AWS' runtime interface emulator with AWS' runtime clients, and requests to it and to the worker."""

import base64
import contextlib
import dataclasses
import hashlib
import http.client
import itertools
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from calls import PYTHON
from images import root_of

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
ROOT = TESTS.parent.parent
sys.path.append(str(ROOT / "node/tests"))

from go_programs import Missing, built  # noqa: E402

PROGRAM = "github.com/aws/aws-lambda-runtime-interface-emulator/cmd/aws-lambda-rie"
NODE_CLIENT = "aws-lambda-ric@3.3.0"
NODE_CLIENT_SHA512 = (
    "9p06TbKVK4a050NY/vYOxhMHvnIiUu5o1W0//q6yNLSqA/c91pn4BOj3C3sRTpplkUNsGJdU5qWyU2STo6L8hA=="
)
NODE_NEEDS = ("node", "npm", "cmake", "g++", "make", "xz")
started = itertools.count()


def program():
    return built("emulator", HERE / "program", [PROGRAM]) / "aws-lambda-rie"


def python_client():
    """The folder with PyPI's awslambdaric, of the version that the worker has."""
    wanted = TESTS.parent / "python-client.txt"
    key = hashlib.sha256(f"{PYTHON}\n".encode() + wanted.read_bytes()).hexdigest()[:16]
    folder = TESTS / f"build/python-client-{key}"
    if not folder.exists():
        fresh = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        pip += ["--only-binary", ":all:", "--require-hashes", "--target", fresh, "-r", wanted]
        subprocess.run(pip, check=True)
        rename(fresh, folder)
    return folder


def node_client():
    """The program of npm's aws-lambda-ric for Node.js up to 22; version 4 is for 24, without callbacks.

    Its compiled part is that of version 4, which functions/schema builds: both have the same four calls.
    """
    missing = [tool for tool in NODE_NEEDS if not shutil.which(tool)]
    if missing:
        raise Missing(f"needs {' '.join(missing)}, to build AWS' client for Node.js")
    compiled = root_of(ROOT / "functions/schema") / "var/task/node_modules/aws-lambda-ric/rapid-client.node"
    folder = (
        TESTS / f"build/node-client-{hashlib.sha256(f'{NODE_CLIENT}{compiled}'.encode()).hexdigest()[:16]}"
    )
    if not folder.exists():
        fresh = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
        subprocess.run(["npm", "pack", "-s", "--pack-destination", fresh, NODE_CLIENT], cwd=fresh, check=True)
        (archive,) = fresh.glob("*.tgz")
        assert hashlib.sha512(archive.read_bytes()).digest() == base64.b64decode(NODE_CLIENT_SHA512)
        subprocess.run(["tar", "-xzf", archive, "-C", fresh, "--no-same-owner"], check=True)
        shutil.copy(compiled, fresh / "package/dist")
        rename(fresh, folder)
    return folder / "package/bin/index.mjs"


def rename(fresh, folder):
    """Gives a finished folder its name, unless another process was faster."""
    with contextlib.suppress(OSError):
        fresh.rename(folder)


def runtimes():
    """For each language that can be had, the command of its client, the client's path and its environment;
    for each other one the reason."""
    python = f"/usr/bin/{PYTHON}"
    # The client asks for the image's name, and writes letters from Python 3.12 on as they are.
    of_image = {"PYTHONPATH": str(python_client()), "AWS_EXECUTION_ENV": f"AWS_Lambda_{PYTHON}"}
    found = {"python": ([python, "-m", "awslambdaric"], python_client(), of_image)}
    try:
        client = node_client()
        found["nodejs"] = ([shutil.which("node"), str(client)], client.parent.parent, {})
    except Missing as why:
        found["nodejs"] = str(why)
    return found


@dataclasses.dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def send(host, port, name, body, headers):
    """Sends one request to run the function, with these headers and no signature."""
    connection = http.client.HTTPConnection(host, port, timeout=120)
    with contextlib.closing(connection):
        with contextlib.suppress(BrokenPipeError):  # it has answered before it had all of the body
            connection.request("POST", f"/2015-03-31/functions/{name}/invocations", body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


class Emulator:
    """The emulator with one function; `command` is its runtime."""

    def __init__(self, program, command, folder, environment):
        number = next(started)
        # An address that no other process of this machine listens on: every test process has its own.
        pid = os.getpid()
        self.host = f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"
        self.port = 10000 + 2 * (number % 10000)
        self.output = os.memfd_create("log")
        addresses = ["--runtime-api-address", f"{self.host}:{self.port + 1}"]
        addresses += ["--runtime-interface-emulator-address", f"{self.host}:{self.port}"]
        self.process = subprocess.Popen(
            [program, *addresses, *command],
            cwd=folder,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LAMBDA_TASK_ROOT": str(folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.DEVNULL,
            # Lambda's text has no "(core dumped)".
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        )

    def __enter__(self):
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection((self.host, self.port)).close()
                return self
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.005)

    def __exit__(self, *_):
        self.process.terminate()  # It ends its runtime.
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.output)

    def send(self, body, headers):
        return send(self.host, self.port, "function", body, headers)

    def log(self):
        """What the function and the emulator have written, without the emulator's own messages."""
        return os.pread(self.output, os.fstat(self.output).st_size, 0).decode(errors="replace")
