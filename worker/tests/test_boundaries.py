"""Attempts of a caller, a web page or a function to harm host, worker and neighbours: each is refused or
bounded (docs/security.md)."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from calls import PYTHON, at_work, create, invoke, shell, zipped
from conftest import MAYFLY, TEMPLATE, Worker, cgroups_of

VIEWS = ["/", "/metrics", "/history", "/events", "/instances"]
KEYS = {"MAYFLY_ACCESS_KEY_ID": "AKIDTEST", "MAYFLY_SECRET_ACCESS_KEY": "secret"}
IS_ROOT = os.geteuid() == 0


def raw(worker, data, seconds=60):
    """The status of the answer to these bytes; None if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", worker.port), timeout=seconds) as connection:
        connection.sendall(data)
        answer = connection.recv(65536)
    return int(answer.split(b" ", 2)[1]) if answer else None


def get(worker, path, **headers):
    request = urllib.request.Request(worker.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def signed(worker, path, service, host=None):
    headers = {"Host": host} if host else {}
    request = botocore.awsrequest.AWSRequest("GET", worker.url + path, headers)
    keys = botocore.credentials.Credentials(*KEYS.values())
    botocore.auth.SigV4Auth(keys, service, "us-east-1").add_auth(request)
    return get(worker, path, **dict(request.headers.items()))[0]


# ---- callers ----


def test_requests_for_other_host_names_are_refused(worker):
    for path in [*VIEWS, "/healthz", "/2015-03-31/functions"]:
        assert get(worker, path, Host="evil.com")[0] == 403, path
        assert get(worker, path, Host=f"localhost:{worker.port}")[0] == 200, path


def test_signed_requests_may_use_the_name_of_a_proxy():
    with Worker(environment=KEYS) as running:
        for path in [*VIEWS, "/2015-03-31/functions"]:
            # Not signed by a page that has bound the name to this machine.
            assert get(running, path, Host="lambda.example.com")[0] in (401, 403), path
        assert signed(running, "/2015-03-31/functions", "lambda", "lambda.example.com") == 200
        headers = {"Host": "lambda.example.com", "Origin": "http://evil.com"}
        assert get(running, "/metrics", Authorization="Basic QUtJRFRFU1Q6c2VjcmV0", **headers)[0] == 403


def test_views_need_the_key_if_requests_are_signed():
    with Worker(environment=KEYS) as running:
        for path in VIEWS:
            status, headers = get(running, path)
            assert status == 401 and headers["www-authenticate"].startswith("Basic"), path
            assert get(running, path, Authorization="Basic QUtJRFRFU1Q6c2VjcmV0")[0] == 200, path
            assert get(running, path, Authorization="Basic QUtJRFRFU1Q6U0VDUkVU")[0] == 401, path
            assert signed(running, path, "lambda") == 200, path
            assert signed(running, path, "s3") == 401, path
        assert signed(running, "/2015-03-31/functions", "lambda") == 200
        assert signed(running, "/2015-03-31/functions", "s3") == 403, "the key of another service's scope"
        assert get(running, "/healthz")[0] == 200


def test_request_has_one_host_and_bounded_headers(worker):
    for line in [b"", b"Host: localhost\r\nHost: evil.com\r\n"]:
        assert raw(worker, b"GET /healthz HTTP/1.1\r\n" + line + b"\r\n") == 400
    assert raw(worker, b"GET /healthz HTTP/1.0\r\n\r\n") == 200
    long = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"
    assert raw(worker, long) == 431


def test_idle_connections_block_neither_new_ones_nor_kept_ones(worker, client):
    kept = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() == b"ok\n"
    first = kept.sock
    held = []
    try:
        for _ in range(1100):
            connection = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
            connection.sendall(b"GET / HT")
            held.append(connection)
        for _ in range(3):
            began = time.monotonic()
            assert worker.get("/healthz") == "ok\n"
            assert invoke(client, "probe", {"do": "count"})[1] is None
            assert time.monotonic() - began < 15
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"ok\n"
        assert kept.sock is first, "the connection from before is still open"
    finally:
        for connection in [kept, *held]:
            connection.close()


def test_stalled_uploads_do_not_block_other_bodies(worker, client):
    head = b"POST /2015-03-31/functions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{"
    held = []
    try:
        # Together they announce all of the memory for bodies, to the last KiB.
        for length in [68_000_000] * 8 + [1 << bits for bits in range(26, 8, -1)] * 2:
            connection = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
            connection.sendall(head % length)
            held.append(connection)
        time.sleep(0.2)
        code = zipped(app_py="def handler(event, context): return event")
        create(client, "uploaded", code)
        assert invoke(client, "uploaded", 5) == (5, None)
        client.delete_function(FunctionName="uploaded")
    finally:
        for connection in held:
            connection.close()


def test_unread_answers_are_bounded(worker, client):
    """Sixty are 360 MiB: the worker closes those that have read nothing for longest; the others read all."""
    event = json.dumps({"do": "large", "bytes": 6_000_000})
    call = (
        "POST /2015-03-31/functions/probe/invocations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(event)}\r\n\r\n{event}"
    )

    def taken(connection):
        length = 1
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                length += len(part)
        return length

    with contextlib.ExitStack() as held:
        waiting = [held.enter_context(socket.socket()) for _ in range(60)]
        began = []
        for connection in waiting:
            began.append(time.monotonic())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(60)
            connection.connect(("127.0.0.1", worker.port))
            connection.sendall(call.encode())
            assert connection.recv(1) == b"H"
        assert invoke(client, "probe", {"do": "large", "bytes": 5_000_000})[1] is None
        # At once, since the worker also closes connections that have read nothing for 30 s.
        recent = [time.monotonic() - at < 25 for at in began]
        with concurrent.futures.ThreadPoolExecutor(60) as threads:
            lengths = list(threads.map(taken, waiting))
    whole = [length > 6_000_000 for length in lengths]
    assert sum(whole) <= 44 and recent[-1], lengths
    assert all(
        is_whole for is_whole, is_recent in list(zip(whole, recent, strict=True))[-35:] if is_recent
    ), lengths


def test_invalid_requests_are_refused_before_their_body(worker):
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000000\r\n\r\n"
    unknown = head % b"/2015-03-31/functions/missing/invocations"
    assert raw(worker, unknown, seconds=5) == 404
    assert raw(worker, head % b"/lambda-url/missing/", seconds=5) == 404
    with Worker(environment=KEYS) as running:
        assert raw(running, head % b"/2015-03-31/functions", seconds=5) == 403


@pytest.mark.skipif(not IS_ROOT, reason="only root reads other users' files")
def test_code_folders_must_lie_below_allowed_ones(client, tmp_path):
    tmp_path.chmod(0o755)
    code, secret = tmp_path / "code", tmp_path / "closed/secret"
    for folder in [code, secret]:
        folder.mkdir(parents=True)
        (folder / "app.py").write_text("def handler(event, context): return open(__file__).read()")
    secret.parent.chmod(0o700)

    def made(client, folder):
        settings = {"Runtime": PYTHON, "Handler": "app.handler", "Role": "arn:aws:iam::0:role/r"}
        code = {"S3Bucket": "folder", "S3Key": str(folder)}
        try:
            client.create_function(FunctionName="folder", Code=code, **settings)
        except client.exceptions.InvalidParameterValueException as error:
            return error.response["Error"]["Message"]
        return invoke(client, "folder")[1]

    assert "--code-from" in made(client, code), "none is named"
    with Worker("--code-from", str(tmp_path)) as running:
        client = running.client()
        assert "closed to others" in made(client, secret)
        assert "--code-from" in made(client, "/etc")
        assert "'..'" in made(client, f"{code}/../closed/secret")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(code / "socket"))
            assert "socket: is neither" in made(client, code)
        (code / "socket").unlink()
        assert made(client, code) is None


def test_unread_log_delays_no_request():
    command = [
        MAYFLY,
        "up",
        TEMPLATE,
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "1500",
        "--without",
        "heap,merge",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            while b"serving" not in (line := process.stderr.readline()):
                assert line
            connection = http.client.HTTPConnection("127.0.0.1", int(line.rsplit(b":", 1)[1]), timeout=60)
            # One function prints much more than the pipe holds; another is called meanwhile.
            for name, event in [("probe", {"do": "print_without_end"}), ("neighbour", {"do": "count"})] * 2:
                connection.request("POST", f"/2015-03-31/functions/{name}/invocations", json.dumps(event))
                answer = connection.getresponse()
                answer.read()
                assert (answer.headers["x-amz-function-error"] is None) == (name == "neighbour")
        finally:
            process.kill()


# ---- functions ----


def test_host_details_are_hidden(client):
    assert (
        shell(client, "cat /proc/cmdline /proc/kallsyms /proc/interrupts /proc/diskstats /proc/modules") == ""
    )
    lines = shell(client, "cat /proc/meminfo").splitlines()
    assert lines[0].split() == ["MemTotal:", str(128 << 10), "kB"], "its own memory"
    assert shell(client, "ls /usr/local") == ""
    assert shell(client, "cat /proc/self/comm && head -c 9 /proc/cpuinfo") == "cat\nprocessor"


def test_sync_system_calls_are_unavailable(client):
    call = "import ctypes as c; l = c.CDLL(None, use_errno=True); print(l.syscall({}, 1), c.get_errno())"
    for number in [162, 306]:  # sync, syncfs
        assert shell(client, f'{PYTHON} -c "{call.format(number)}"').split() == ["-1", "38"]


def test_unexpected_answer_is_refused_unread(client):
    """The worker refuses it before its body is sent: sixteen bodies would take 96 MiB of the worker."""
    ask = (
        "import socket; c = socket.create_connection(('127.0.0.1', 9001), 4);"
        "c.sendall(b'POST /2018-06-01/runtime/invocation/x/{} HTTP/1.1\\r\\nHost: r\\r\\n');"
        "c.sendall(b'Content-Length: 6000000\\r\\n\\r\\n');"
        "print(c.recv(20))"
    )
    for kind in ["response", "error"]:
        assert "400" in shell(client, f'{PYTHON} -c "{ask.format(kind)}"')
    init = ask.replace("invocation/x/{}", "init/error")
    assert "403" in shell(client, f'{PYTHON} -c "{init}"')


def test_busy_instance_rests_seldom():
    for arguments in [[], ["--without", "merge"]]:
        with Worker(TEMPLATE, *arguments) as running:
            client = running.client()
            ends = time.monotonic() + 9
            requests = 0
            while time.monotonic() < ends:
                assert invoke(client, "single", {"do": "sleep", "seconds": 0.01})[1] is None
                requests += 1
            assert "mayfly_rests_total" in running.get("/metrics")
            # On a busy machine a request may arrive so late that the instance has been idle before.
            assert running.figure("mayfly_rests_total") <= 4 + requests // 8, f"{requests} requests"


def test_busy_function_starves_no_other():
    with Worker(TEMPLATE, "--memory", "512", "--queue-wait", "60") as running:
        client = running.client()
        stops = time.monotonic() + 90
        done = []

        def busy(_):
            while not done and time.monotonic() < stops:
                invoke(client, "probe", {"do": "sleep", "seconds": 0.2})

        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            calls = [threads.submit(busy, number) for number in range(12)]
            running.wait_for(r"(?s)(START.*){8}")
            began = time.monotonic()
            try:
                for _ in range(5):
                    assert invoke(client, "neighbour", {"do": "count"})[1] is None
                took = time.monotonic() - began
            finally:
                done.append(True)
            for call in calls:
                call.result()
        assert took < 40, "it has waited for the others to be idle"


def test_refusal_names_the_limiting_resource():
    with Worker(TEMPLATE, "--memory", "128", "--queue-wait", "5") as running:
        client = running.client()
        invoke(client, "single", {"do": "count"})
        with at_work(running, "single", {"do": "sleep", "seconds": 12}) as held:
            with pytest.raises(client.exceptions.TooManyRequestsException) as caught:
                invoke(client, "neighbour", {"do": "count"})
            assert held.result() == ("slept", None)
        message = caught.value.response["Error"]["Message"]
        assert "128 of 128 MiB (--memory), single 128 of them" in message, message


@pytest.mark.skipif(not IS_ROOT, reason="a PID namespace of its own needs root")
def test_worker_in_another_pid_namespace_removes_nothing(worker, client):
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        MAYFLY,
        "up",
        "--listen",
        "127.0.0.1:0",
    ]
    before = cgroups_of(worker.process.pid)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as other:
        assert b"serving" in other.stderr.readline(), other.stderr.read()
        other.kill()
    assert before and cgroups_of(worker.process.pid) == before
    client.update_function_configuration(FunctionName="neighbour", Description="changed")
    assert invoke(client, "neighbour", {"do": "count"})[1] is None, "its folders are there"
