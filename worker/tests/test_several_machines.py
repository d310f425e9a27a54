"""Three workers behind HAProxy with the configuration that deploy/haproxy has: a function's calls go to few
of them, and none that was accepted is lost while one is drained and replaced. Of one that is killed only the
calls are lost that it ran."""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import re
import signal
import socket
import threading

import balancer
import botocore.exceptions
import pytest
from calls import PYTHON, invoke, until
from conftest import Worker, client_at

pytestmark = pytest.mark.skipif(not balancer.PROGRAM, reason="needs haproxy")

KEYS = {"MAYFLY_ACCESS_KEY_ID": "AKIDTEST", "MAYFLY_SECRET_ACCESS_KEY": "secret"}
APP = """
import time
def handler(event, context):
    print("handles", event.get("number"), flush=True)
    time.sleep(event.get("seconds", 0))
    return context.aws_request_id
def unavailable(event, context):
    print("was asked", flush=True)
    return {"statusCode": 503, "body": "of the function"}
"""
FUNCTIONS = [f"f{number}" for number in range(8)]


class Machines:
    """Three workers with the same template and key, each with a state of its own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "code").mkdir()
        (folder / "code/app.py").write_text(APP)
        functions = {name: {"Handler": "app.handler"} for name in FUNCTIONS}
        functions |= {
            "full": {"Handler": "app.handler", "ReservedConcurrentExecutions": 0},
            "busy": {"Handler": "app.unavailable", "FunctionUrlConfig": {"AuthType": "NONE"}},
        }
        common = {"Runtime": PYTHON, "CodeUri": "code", "Timeout": 120, "MemorySize": 128}
        resources = {
            name.title(): {
                "Type": "AWS::Serverless::Function",
                "Properties": {"FunctionName": name, **common, **own},
            }
            for name, own in functions.items()
        }
        (folder / "template.json").write_text(json.dumps({"Resources": resources}))
        self.workers = [self.start(number) for number in range(3)]
        self.logs = []

    def start(self, number, address="127.0.0.1:0"):
        state = str(self.folder / f"state-{number}")
        drain = ["--drain", "5", "--grace", "60"]
        template = str(self.folder / "template.json")
        return Worker(template, "--state", state, "--listen", address, *drain, environment=KEYS)

    def end(self, number, how):
        self.workers[number].process.send_signal(how)
        return self.workers[number].process.wait(120)

    def replace(self, number):
        """Starts another one with the address and the state of one that has ended."""
        ended = self.workers[number]
        self.workers[number] = self.start(number, f"127.0.0.1:{ended.port}")
        ended.stop()
        self.logs.append(ended.last_log)

    def log(self):
        return "\n".join([*self.logs, *(worker.log() for worker in self.workers)])

    def times(self, pattern):
        """How often a line is in the logs, by the pattern's group."""
        return collections.Counter(re.findall(pattern, self.log()))

    def servers_of(self, name, least=1):
        """The workers that have run a function, at least so many; their logs may come later than answers."""

        def found():
            servers = [n for n, worker in enumerate(self.workers) if f"[{name}#" in worker.log()]
            return servers if len(servers) >= least else None

        return until(found, self.log, 60)


@pytest.fixture
def machines(tmp_path):
    tmp_path.chmod(0o755)
    with contextlib.ExitStack() as stack:
        three = Machines(tmp_path)
        for number in range(3):
            # Whichever is there then.
            stack.callback(lambda number=number: three.workers[number].stop(signal.SIGKILL))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            three.front = f"127.0.0.1:{free.getsockname()[1]}"
        addresses = [f"127.0.0.1:{worker.port}" for worker in three.workers]
        three.proxy_log = stack.enter_context(balancer.balanced(tmp_path, addresses, three.front))
        three.client = client_at(f"http://{three.front}", *KEYS.values())
        yield three


def request(machines, method, path, **headers):
    connection = http.client.HTTPConnection(machines.front, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_functions_have_few_workers_and_refusals_pass(machines):
    client = machines.client
    for name in FUNCTIONS:
        arn = f"arn:aws:lambda:us-east-1:000000000000:function:{name}"
        for called in (name, arn, f"{name}:$LATEST", f"000000000000:function:{name}"):
            assert invoke(client, called, {})[1] is None
    of_each = {name: machines.servers_of(name) for name in FUNCTIONS}
    assert all(len(servers) == 1 for servers in of_each.values()), of_each
    assert len({server for [server] in of_each.values()}) > 1, of_each
    # More at once than one worker's share: the next worker on the ring has them.
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        calls = [threads.submit(invoke, client, "f0", {"seconds": 2}) for _ in range(6)]
        assert all(call.result()[1] is None for call in calls)
    machines.servers_of("f0", least=2)  # the load is bounded

    with pytest.raises(client.exceptions.TooManyRequestsException) as refused:
        client.invoke(FunctionName="full")
    assert refused.value.response["retryAfterSeconds"] == "1"
    # What would change, or show, one worker alone.
    assert (
        request(machines, "GET", "/metrics")[0]
        == request(machines, "DELETE", "/2015-03-31/functions/f0")[0]
        == 403
    )
    assert {one["FunctionName"] for one in client.list_functions()["Functions"]} > set(FUNCTIONS)
    assert request(machines, "GET", "/healthz")[0] == 200


def test_function_url_is_the_same_everywhere_and_its_503_is_not_repeated(machines):
    urls = [
        worker.client(*KEYS.values()).get_function_url_config(FunctionName="busy")["FunctionUrl"]
        for worker in machines.workers
    ]
    paths = {url.split("/", 3)[3] for url in urls}
    assert len(paths) == 1, urls
    [path] = paths
    by_name = {"Host": f"{path.split('/')[1]}.lambda-url.example.com"}
    for where, headers in [(f"/{path}", {}), ("/", by_name)]:
        status, _, body = request(machines, "GET", where, **headers)
        assert (status, body) == (503, "of the function"), where
    until(lambda: machines.log().count("was asked") == 2, machines.log, 60)
    assert len(machines.servers_of("busy")) == 1


def test_worker_is_drained_and_replaced_and_nothing_is_lost(machines):
    client, over = machines.client, threading.Event()
    answered, accepted, failed = [], [], []
    numbers = iter(range(1 << 30))

    def call(kind):
        while not over.is_set():
            number = next(numbers)
            payload = json.dumps({"number": number, "seconds": 0.05 * (number % 2)})
            try:
                answer = client.invoke(
                    FunctionName=FUNCTIONS[number % 8], InvocationType=kind, Payload=payload
                )
                answer["Payload"].read()
            except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
                failed.append((number, kind, str(error)))
                continue
            (answered if kind == "RequestResponse" else accepted).append(number)

    def more(count=40):
        enough = len(answered) + count, len(accepted) + count // 2
        until(lambda: (len(answered), len(accepted)) >= enough or failed, machines.log)

    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        callers = [threads.submit(call, kind) for kind in ["RequestResponse"] * 3 + ["Event"] * 2]
        try:
            more()
            [drained, *_] = machines.servers_of("f0")
            assert machines.end(drained, signal.SIGTERM) == 0
            more()
            machines.replace(drained)
            until(lambda: "START" in machines.workers[drained].log() or failed, machines.log)
            more()
        finally:
            over.set()
        for caller in callers:
            caller.result()
    assert failed == []
    handled = lambda: machines.times(r"\] handles (\d+)")  # noqa: E731
    missing = lambda: {str(number) for number in answered + accepted} - set(handled())  # noqa: E731
    until(lambda: not missing(), lambda: f"{missing()}\n{machines.log()}")
    twice = {number for number, times in handled().items() if times > 1}
    assert twice == set() and len(answered) > 100, twice


def test_of_a_killed_worker_only_running_calls_are_lost(machines):
    client = machines.client
    assert invoke(client, "f0", {})[1] is None
    [killed] = machines.servers_of("f0")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        # On a connection of its own: on one that is kept from an earlier call HAProxy closes it in place of
        # an answer.
        alone = client_at(f"http://{machines.front}", *KEYS.values())
        running = threads.submit(invoke, alone, "f0", {"number": 1, "seconds": 60})
        machines.workers[killed].wait_for(r"handles 1\b")
        # Accepted by the same worker, if its share allows that.
        for number in range(100, 110):
            payload = json.dumps({"number": number, "seconds": 3})
            client.invoke(FunctionName="f0", InvocationType="Event", Payload=payload)
        machines.end(killed, signal.SIGKILL)
        with pytest.raises(botocore.exceptions.ClientError) as lost:
            running.result()
        assert lost.value.response["ResponseMetadata"]["HTTPStatusCode"] == 502
    # Its connections are refused from then on, and the proxy sends calls on to others at once.
    for _ in range(20):
        assert invoke(client, "f0", {"number": 2})[1] is None
    machines.replace(killed)
    events = {str(number) for number in range(100, 110)}
    until(lambda: events <= set(machines.times(r"\] handles (\d+)")), machines.log)
    assert machines.times(r"\] handles (\d+)")["1"] == 1, "no call is run again that a worker had"
