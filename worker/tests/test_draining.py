"""SIGTERM with --drain and --grace: a proxy finds another worker before this one refuses anything, and
running calls are finished. A refusal says when to try again."""

import contextlib
import http.client
import json
import signal
import socket
import threading
import urllib.error
import urllib.request

import botocore.exceptions
import pytest
from calls import PYTHON, create, invoke, one_function, until, zipped
from conftest import Worker

APP = """
import time
def handler(event, context):
    print("has begun", flush=True)
    time.sleep(event.get("seconds", 0))
    return "x" * event.get("size", 1)
"""
CALL = "/2015-03-31/functions/f/invocations"
# Longer than the time that calls have without --grace.
LONG_S = 7


def status(running, path, method="GET", body=None):
    """Status and headers, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers
    finally:
        connection.close()


def test_draining_worker_is_unhealthy_and_serves():
    with Worker("--drain", "600") as running:
        client = running.client()
        create(client, "f", zipped(app_py=APP))
        before = status(running, CALL, "POST", "{}")
        assert before[0] == 200 and before[1]["connection"] is None
        running.process.send_signal(signal.SIGTERM)
        until(lambda: status(running, "/healthz")[0] == 503)
        code, headers = status(running, CALL, "POST", "{}")
        assert (code, headers["connection"]) == (200, "close"), "a kept connection leads here again"
        assert invoke(client, "f", {}) == ("x", None)
        create(client, "more", zipped(app_py=APP))
        # The operator does not want to wait for the rest of the time.
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


def test_running_calls_have_the_grace_time():
    with Worker("--grace", "60") as running:
        client = running.client()
        create(client, "f", zipped(app_py=APP), Timeout=30)
        answers = []
        caller = threading.Thread(target=lambda: answers.append(invoke(client, "f", {"seconds": LONG_S})))
        caller.start()
        running.wait_for("has begun")
        running.process.send_signal(signal.SIGTERM)
        until(lambda: status(running, "/healthz")[0] == 503)
        code, headers = status(running, CALL, "POST", "{}")
        assert (code, headers["retry-after"]) == (503, "1"), "without --drain it accepts nothing more"
        caller.join()
        assert answers == [("x", None)]
        assert running.process.wait(60) == 0


def test_client_that_reads_slowly_has_its_whole_answer():
    size = 5_900_000
    with Worker("--grace", "60") as running:
        client = running.client()
        create(client, "f", zipped(app_py=APP))
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", running.port))
        with slow:
            body = json.dumps({"size": size})
            head = f"POST {CALL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            slow.sendall((head + body).encode())
            received = len(slow.recv(1))
            running.process.send_signal(signal.SIGTERM)
            # Its instances have ended; what is left to do is the answer.
            until(lambda: not running.descendants(), running.log)
            while part := slow.recv(1 << 16):
                received += len(part)
            assert received > size, f"{received} of {size} bytes"
        assert running.process.wait(60) == 0


def test_every_refusal_for_want_of_room_says_when_to_try_again(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").write_text(APP)
    template = one_function(
        tmp_path,
        "f",
        PYTHON,
        Timeout=60,
        FunctionUrlConfig={"AuthType": "NONE"},
        ReservedConcurrentExecutions=1,
    )
    with Worker(template, "--queue", "1") as running:
        client = running.client()
        client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=0)
        url = client.get_function_url_config(FunctionName="f")["FunctionUrl"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url)
        refused.value.close()
        assert (refused.value.code, refused.value.headers["retry-after"]) == (429, "1")
        for path in (
            "2015-03-31/functions/f/invocations",
            "2021-11-15/functions/f/response-streaming-invocations",
        ):
            code, headers = status(running, f"/{path}", "POST", "{}")
            assert (code, headers["retry-after"]) == (429, "1"), path
        # One runs, one waits, and no other may.
        client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=1)

        def call():
            with contextlib.suppress(botocore.exceptions.BotoCoreError):
                invoke(client, "f", {"seconds": 60})

        callers = [threading.Thread(target=call) for _ in range(2)]
        callers[0].start()
        running.wait_for("has begun")
        callers[1].start()
        until(lambda: running.figure("mayfly_queued_requests") == 1, running.state)
        code, headers = status(running, CALL, "POST", "{}")
        assert (code, headers["retry-after"]) == (429, "1")
        running.stop(signal.SIGKILL)
        for caller in callers:
            caller.join()
