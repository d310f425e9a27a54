"""`--reach`: a function reaches the services of its host that the operator names, and nothing else there."""

import contextlib
import os
import shutil
import socket
import socketserver
import subprocess
import threading

import pytest
from calls import create, invoke, zipped
from conftest import MAYFLY, Worker

APP = """
import socket

def handler(event, context):
    try:
        with socket.create_connection((event["host"], event["port"]), 20) as connection:
            connection.settimeout(20)
            connection.sendall(b"x" * event["bytes"])
            connection.shutdown(socket.SHUT_WR)
            parts = iter(lambda: connection.recv(1 << 16), b"")
            return sum(map(len, parts))
    except OSError as error:
        return type(error).__name__
"""
FAILED = ("ConnectionRefusedError", "ConnectionResetError")


class Twice(socketserver.BaseRequestHandler):
    """Answers the end of a request with twice its bytes."""

    def handle(self):
        parts = iter(lambda: self.request.recv(1 << 16), b"")
        self.request.sendall(b"y" * 2 * sum(map(len, parts)))


@contextlib.contextmanager
def service(host):
    """A server on a free port of this address."""

    class Server(socketserver.ThreadingTCPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    with Server((host, 0), Twice) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def own_address():
    """An address of this host that is not loopback's, or None."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("network", ["none", "outside"])
def test_function_reaches_named_services_alone(network):
    if network == "outside" and (os.geteuid() != 0 or not shutil.which("nft")):
        pytest.skip("interfaces and rules need root and nftables")
    address = own_address() or "127.0.0.1"
    with contextlib.ExitStack() as stack:
        loopback, other, sixth, unnamed = (
            stack.enter_context(service(host)) for host in ("127.0.0.1", address, "::1", "127.0.0.1")
        )
        absent = free_port()
        places = [f"127.0.0.1:{loopback}", f"{address}:{other}", f"[::1]:{sixth}", f"127.0.0.1:{absent}"]
        arguments = [word for place in places for word in ("--reach", place)]
        running = stack.enter_context(Worker("--network", network, *arguments))
        client = running.client()
        create(client, "reaches", zipped(app_py=APP), Timeout=60)

        def sent(host, port, number=1000):
            answer, error = invoke(client, "reaches", {"host": host, "port": port, "bytes": number})
            assert error is None, answer
            return answer

        for host in ("127.0.0.1", "localhost", "host.docker.internal"):
            assert sent(host, loopback) == 2000, host
        for host in (address, "host.docker.internal"):
            assert sent(host, other) == 2000, host
        for host in ("::1", "host.docker.internal"):
            assert sent(host, sixth) == 2000, host
        assert sent("127.0.0.1", loopback, 5_000_000) == 10_000_000
        for host in {"127.0.0.1", "host.docker.internal", address}:
            assert sent(host, unnamed) in FAILED, host
        assert sent("127.0.0.1", absent) in FAILED


def test_host_has_no_name_where_no_service_is_named(client):
    command = "getent hosts host.docker.internal || echo none"
    answer, _ = invoke(client, "probe", {"do": "shell", "command": command})
    assert answer["out"] == "none\n"


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--reach", "6379"], "an address with a port is needed"),
        (["--reach", "0.0.0.0:1"], "an address with a port is needed"),
        (["--reach", "127.0.0.1:9001"], "Runtime API"),
        (["--reach", "127.0.0.1:1", "--reach", "127.0.0.2:1"], "have one port"),
    ],
)
def test_wrong_services_end_the_start(arguments, reason):
    command = [MAYFLY, "up", "--listen", "127.0.0.1:0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0
    assert [reason in line for line in ended.stderr.splitlines()].count(True) == 1, ended.stderr
