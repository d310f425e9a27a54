"""The worker hands over to a new version of itself while requests arrive, and loses none of them."""

import collections
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import threading
import urllib.request

import pytest
from calls import create, invoke, until, zipped
from conftest import HERE, TEMPLATE, Worker, is_alive

PATIENCE_S = 120
CODE = zipped(app_py="def handler(event, context): return context.function_version")


class Succession:
    """A worker and its successors, one after the other."""

    def __init__(self, running):
        self.running, self.now = running, running.process.pid

    def successors(self):
        return [int(found) for found in re.findall(r"handed over to PID (\d+)", self.running.log())]

    def hand_over(self):
        before = len(self.successors())
        os.kill(self.now, signal.SIGUSR2)
        until(lambda: len(self.successors()) > before, self.running.log)
        self.now = self.successors()[-1]


@contextlib.contextmanager
def succession(*arguments, environment=None):
    with Worker(*arguments, environment=environment) as running:
        line = Succession(running)
        try:
            yield line, running
            # Each ends when it has finished its requests.
            assert running.process.wait(PATIENCE_S) == 0
            os.kill(line.now, signal.SIGTERM)
            until(lambda: not any(map(is_alive, line.successors())), running.log)
        finally:
            for process in filter(is_alive, line.successors()):
                os.kill(process, signal.SIGKILL)


def connected(running):
    return socket.create_connection(("127.0.0.1", running.port))


def test_handover_loses_no_request(tmp_path):
    with succession(TEMPLATE, "--state", str(tmp_path), "--keep-alive", "5") as (line, running):
        client = running.client(max_pool_connections=8)
        over, answered, events = threading.Event(), [], []

        def ask(number):
            """As clients do, over a kept-alive connection; every second request takes a while."""
            while not over.is_set():
                answer, error = invoke(client, "probe", {"do": "count", "seconds": 0.02 * (number % 2)})
                answered.append((error, answer["id"] if error is None else answer))

        def send():
            while not over.is_set():
                sent = client.invoke(
                    FunctionName="neighbour", InvocationType="Event", Payload=b'{"do": "count"}'
                )
                events.append(sent["ResponseMetadata"]["RequestId"])

        with concurrent.futures.ThreadPoolExecutor(5) as threads:
            asking = [threads.submit(ask, number) for number in range(4)] + [threads.submit(send)]
            try:
                for _ in range(3):
                    done = len(answered)
                    until(lambda done=done: len(answered) > done + 40 or any(one.done() for one in asking))
                    line.hand_over()
                until(lambda: len(events) > 20 or any(one.done() for one in asking))
            finally:
                over.set()
            for one in asking:
                one.result()
        assert [error for error, _ in answered if error] == []
        assert len({id for _, id in answered}) == len(answered) > 100, "each once"

        def reports():
            found = re.findall(r"\[neighbour#\d+\] REPORT RequestId: (\S+)", running.log())
            return collections.Counter(found)

        until(lambda: set(reports()) >= set(events), running.log)
        # A worker that has handed over finishes its last events before it ends.
        until(lambda: not is_alive(running.process.pid), running.log)
        twice = [id for id, times in reports().items() if times > 1]
        lines = [line for line in running.log().splitlines() if any(id in line for id in twice)]
        assert (lines, len(events) > 20) == ([], True), "each event once"


def test_event_runs_once_while_workers_hand_over_one_after_the_other(tmp_path):
    """The third worker finds it in the state while the first one still runs it."""
    with succession(TEMPLATE, "--state", str(tmp_path)) as (line, running):
        payload = json.dumps({"do": "sleep", "seconds": 12})
        running.client().invoke(FunctionName="single", InvocationType="Event", Payload=payload)
        running.wait_for(r"single#\d+\] START RequestId")
        line.hand_over()
        line.hand_over()
        assert is_alive(running.process.pid), "it runs the event"
        until(lambda: not is_alive(running.process.pid), running.log)
        until(lambda: [one for one in line.successors() if is_alive(one)] == [line.now], running.log)
        client = running.client()
        assert invoke(client, "single", {"do": "count"})[1] is None, "nothing else holds its one instance"

        def starts():
            return len(re.findall(r"single#\d+\] START RequestId", running.log()))

        until(lambda: starts() >= 2, running.log)  # the log may come later than the answer
        assert starts() == 2


def test_handover_finishes_requests_and_keeps_functions(tmp_path):
    with succession(TEMPLATE, "--state", str(tmp_path)) as (line, running):
        client = running.client()
        create(client, "made", CODE, Publish=True)
        url = client.get_function_url_config(FunctionName="probe")["FunctionUrl"]
        before = invoke(client, "made", Qualifier="1")
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            asked = threads.submit(invoke, client, "single", {"do": "sleep", "seconds": 20})
            running.wait_for(r"single#\d+\] START RequestId")
            line.hand_over()
            assert not asked.done() and is_alive(running.process.pid)
            # This client is still connected to the earlier worker, which forwards requests.
            made = create(client, "later", CODE)
            assert made["State"] == "Active"
            assert (invoke(client, "made", Qualifier="1"), before) == (("1", None), ("1", None))
            assert invoke(client, "later") == ("$LATEST", None)
            assert asked.result()[1] is None
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 201
        assert client.get_function_url_config(FunctionName="probe")["FunctionUrl"] == url
        names = {function["FunctionName"] for function in client.list_functions()["Functions"]}
        assert {"made", "later", "probe"} <= names


def test_kept_alive_connection_serves_one_more_request():
    with succession(TEMPLATE) as (line, running), connected(running) as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in kept.recv(65536)
        line.hand_over()
        # The next request of this connection is answered, with `connection: close`.
        kept.sendall(b"GET /instances HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while part := kept.recv(65536):
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"200 OK" in head and b"connection: close" in head.lower(), head
        assert b'"instances"' in body


def test_failed_start_of_the_new_version_changes_nothing(tmp_path):
    template = tmp_path / "template.yaml"
    good = (HERE / "functions/template.yaml").read_text().replace("CodeUri: ", f"CodeUri: {HERE}/functions/")
    template.write_text(good)
    state = str(tmp_path / "state")
    with Worker(str(template), "--state", state) as running:
        client = running.client()
        create(client, "made", CODE)
        template.write_text("Resources: [")
        running.process.send_signal(signal.SIGUSR2)
        running.wait_for("SIGUSR2: the new worker has ended before it served: exit status: 1")
        create(client, "more", CODE)
        assert invoke(client, "more") == invoke(client, "made") == ("$LATEST", None)
        event = client.invoke(FunctionName="made", InvocationType="Event")["ResponseMetadata"]["RequestId"]
        running.wait_for(f"REPORT RequestId: {event}")
    template.write_text(good)
    with Worker(str(template), "--state", state) as again:
        assert invoke(again.client(), "more") == ("$LATEST", None), "the state has it"


def test_handover_without_state_is_refused():
    with Worker() as running:
        client = running.client()
        create(client, "made", CODE)
        running.process.send_signal(signal.SIGUSR2)
        running.wait_for(
            "SIGUSR2: made was made by the API and would be lost: mayfly up --state FOLDER keeps it"
        )
        assert invoke(client, "made") == ("$LATEST", None)


def test_handover_reports_the_main_pid_to_systemd(tmp_path):
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notifications.bind(str(tmp_path / "notify"))
    notifications.settimeout(PATIENCE_S)
    with succession(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as (line, running):
        assert notifications.recv(100).decode() == "READY=1"
        line.hand_over()
        # From the earlier process alone: systemd believes the main process (NotifyAccess=main).
        assert notifications.recv(100).decode() == f"MAINPID={line.now}"
        notifications.setblocking(False)
        with pytest.raises(BlockingIOError):
            notifications.recv(100)


@pytest.mark.parametrize("given", ["", "x", "3", "0 1", "3 3", "700 701"])
def test_invalid_handover_descriptors_are_refused(given):
    with pytest.raises(AssertionError, match="MAYFLY_TAKES_OVER") as caught:
        Worker(environment={"MAYFLY_TAKES_OVER": given})
    assert "panicked" not in str(caught.value)
