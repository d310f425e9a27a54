"""A bucket server with Amazon S3's protocol that checks signatures: versitygw, on folders."""

import contextlib
import socket
import subprocess
import urllib.error
import urllib.request

from go_programs import built

from node import HERE, until


def program():
    return built("bucket", HERE / "bucket", ["github.com/versity/versitygw/cmd/versitygw"]) / "versitygw"


class BucketServer:
    """A server whose address stays the same across restarts; `folder` has the buckets."""

    def __init__(self, program, folder, secret="nothing"):
        self.program, self.folder, self.secret = program, folder, secret
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def environment(self):
        """Its address and credentials, as clients read them."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    @contextlib.contextmanager
    def running(self, secret=None):
        """Serves while the block runs."""
        (self.folder / "root").mkdir(exist_ok=True)
        command = [self.program, "--access", "nobody", "--secret", secret or self.secret]
        command += ["--port", f"127.0.0.1:{self.port}", "--health", "/health", "-q"]
        command += ["posix", "--sidecar", self.folder / "sidecar", self.folder / "root"]
        (self.folder / "sidecar").mkdir(exist_ok=True)
        with open(self.folder.parent / f"{self.folder.name}.log", "ab") as log:
            server = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, cwd="/")
        try:
            until(self.responds, "the bucket server responds")
            yield self
        finally:
            server.terminate()
            server.wait(30)

    def responds(self):
        with contextlib.suppress(OSError):
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200
            except urllib.error.HTTPError:
                return True

    @contextlib.contextmanager
    def hanging(self):
        """Accepts connections and never responds; yields a function that returns the accepted ones."""
        connections = []
        with socket.create_server(("127.0.0.1", self.port)) as server:
            server.settimeout(0.1)

            def accepted():
                with contextlib.suppress(TimeoutError):
                    connections.append(server.accept()[0])
                return connections

            try:
                yield accepted
            finally:
                for connection in connections:
                    connection.close()
