"""SnapStart of functions with extensions: their programs start beside each restored runtime, as ever."""

import re

import pytest
from calls import create, invoke, programs, until, zipped
from conftest import Worker
from test_snapshots import HAS_SNAPSHOT, SNAP_START, at_once_until, is_restored

# Serves the function on a port, as AWS' extension for parameters and secrets does.
AGENT = """#!/usr/bin/python3
import http.client, http.server, json, os, threading, time, uuid

STARTED = uuid.uuid4().hex
ROOT = "/2020-01-01/extension"
time.sleep(float(os.environ.get("STARTS_AFTER", 0)))
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

def call(method, path, body=None, **headers):
    api.request(method, ROOT + path, body, {"Lambda-Extension-" + key: text for key, text in headers.items()})
    answer = api.getresponse()
    assert answer.status == 200, answer.read()
    return answer.headers, json.loads(answer.read())

class Served(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(STARTED.encode())

    def log_message(self, *_):
        pass

open("/tmp/of-agent", "w").write(STARTED)
headers, about = call("POST", "/register", json.dumps({"events": ["INVOKE", "SHUTDOWN"]}), Name="agent")
assert about["functionName"] == os.environ["AWS_LAMBDA_FUNCTION_NAME"], about
own = {"Identifier": headers["Lambda-Extension-Identifier"]}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 2773), Served)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("x" * 100_000, flush=True)
while True:
    _, event = call("GET", "/event/next", **own)
    what = event.get("requestId", event.get("shutdownReason"))
    print("agent", STARTED, event["eventType"], what, flush=True)
    if event["eventType"] == "SHUTDOWN":
        os._exit(0)
"""
APP = """
import os, time, urllib.error, urllib.request

def ask():
    for _ in range(1000):
        try:
            with urllib.request.urlopen("http://127.0.0.1:2773/", timeout=60) as answer:
                return answer.read().decode()
        except urllib.error.URLError:
            time.sleep(0.02)

AT_IMPORT = ask()

def handler(event, context):
    time.sleep((event or {}).get("seconds", 0))
    return {"import": AT_IMPORT, "agent": ask(), "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
            "stream": context.log_stream_name, "id": context.aws_request_id,
            "tmp": open("/tmp/of-agent").read()}
"""
INTERNAL = """
import http.client, json, os, threading

def extension():
    api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    name = {"Lambda-Extension-Name": "inside"}
    api.request("POST", "/2020-01-01/extension/register", json.dumps({"events": []}), name)
    answer = api.getresponse()
    answer.read()
    id = {"Lambda-Extension-Identifier": answer.headers["Lambda-Extension-Identifier"]}
    registered.set()
    api.request("GET", "/2020-01-01/extension/event/next", headers=id)
    api.getresponse()

registered = threading.Event()
threading.Thread(target=extension, daemon=True).start()
registered.wait()

def handler(event, context):
    return os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]
"""


@pytest.fixture(scope="module")
def layer(running):
    content = programs({"extensions/agent": AGENT})
    return running.client().publish_layer_version(LayerName="agent", Content={"ZipFile": content})[
        "LayerVersionArn"
    ]


def restored(running, name):
    """The answers of restored instances of version 1, by their log streams: the first of each."""
    running.wait_for(HAS_SNAPSHOT % name)
    client = running.client(max_pool_connections=4)
    enough = lambda answers: len({one["stream"] for one in answers if is_restored(one)}) > 1  # noqa: E731
    answers = at_once_until(enough, client, name, 4, Qualifier="1")
    return {answer["stream"]: answer for answer in reversed(answers) if is_restored(answer)}


@pytest.mark.parametrize("starts_after", ["0", "1"])
def test_extensions_start_beside_the_restored_runtime(running, layer, starts_after):
    client, name = running.client(), f"watched{starts_after}"
    variables = {"Variables": {"STARTS_AFTER": starts_after}}
    create(client, name, zipped(app_py=APP), Layers=[layer], Environment=variables, **SNAP_START)
    client.publish_version(FunctionName=name)
    answers = restored(running, name)
    agents = [answer["agent"] for answer in answers.values()]
    assert len(set(agents)) == len(agents), "each instance has its own"
    # The one that ran beside the instance that was taken.
    (at_import,) = {answer["import"] for answer in answers.values()}
    assert at_import not in agents
    for answer in answers.values():
        # The file of the one before was there, and was written anew.
        assert answer["tmp"] == answer["agent"]
        # Even the first event has waited for the registration.
        running.wait_for(rf"agent {answer['agent']} INVOKE {answer['id']}")
    client.delete_function(FunctionName=name)
    for agent in agents:
        running.wait_for(rf"agent {agent} SHUTDOWN spindown")


def test_extension_that_ends_ends_the_restored_instance_alone(running, layer):
    code = APP.replace("    time.sleep((event", "    if event.get('kills'): kill()\n    time.sleep((event")
    code += """
def kill():
    import pathlib, signal
    for status in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        if b"/opt/extensions/agent" in status.read_bytes():
            os.kill(int(status.parent.name), signal.SIGKILL)
            time.sleep(60)
"""
    client = running.client()
    create(client, "crashes", zipped(app_py=code), Layers=[layer], **SNAP_START)
    client.publish_version(FunctionName="crashes")
    assert len(restored(running, "crashes")) > 1
    answer, error = invoke(client, "crashes", {"kills": True}, Qualifier="1")
    assert (error, answer["errorType"]) == ("Unhandled", "Extension.Crash"), answer
    again = until(lambda: [one for one in [invoke(client, "crashes", {}, Qualifier="1")] if one[1] is None])
    assert is_restored(again[0][0])


def test_extension_inside_the_runtime_has_the_function_start_as_ever(running):
    client = running.client()
    create(client, "internal", zipped(app_py=INTERNAL), **SNAP_START)
    client.publish_version(FunctionName="internal")
    assert invoke(client, "internal", Qualifier="1") == ("on-demand", None)
    why = "the extension inside inside the runtime cannot be restored"
    running.wait_for(rf"\[internal\] starts as ever, without a snapshot: .*{why}")
    assert len(re.findall(r"\[internal\] starts as ever", running.log())) == 1, "it is not tried again"


def test_program_of_the_functions_own_is_restored_beside_its_extension(tmp_path):
    """Its client is not Mayfly's: it is taken in its request among those of the extension."""
    bootstrap = """#!/usr/bin/python3
import http.client, json, os, uuid
STARTED = uuid.uuid4().hex
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
below = "/2018-06-01/runtime/invocation/"
while True:
    api.request("GET", below + "next")
    asked = api.getresponse()
    event = json.loads(asked.read()) or {}
    answer = {"started": STARTED, "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
              "shares": "mayfly-snapshot" in open("/proc/self/maps").read()}
    id = asked.headers["Lambda-Runtime-Aws-Request-Id"]
    api.request("POST", below + id + "/response", json.dumps(answer))
    api.getresponse().read()
"""
    with Worker("--burst", "4") as alone:
        client = alone.client()
        content = programs({"extensions/agent": AGENT})
        arn = client.publish_layer_version(LayerName="agent", Content={"ZipFile": content})["LayerVersionArn"]
        code = programs({"bootstrap": bootstrap})
        create(client, "program", code, Runtime="provided.al2023", Layers=[arn], **SNAP_START)
        client.publish_version(FunctionName="program")
        alone.wait_for(HAS_SNAPSHOT % "program")
        answer = until(
            lambda: [one for one, _ in [invoke(client, "program", Qualifier="1")] if one["shares"]]
        )
        assert answer[0]["type"] == "snap-start"
