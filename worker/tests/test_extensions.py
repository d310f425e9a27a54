"""Extensions, of a layer and of the function itself, by Lambda's Extensions API."""

import re

import pytest
from calls import create, invoke, programs, until, zipped

WATCH = """#!/usr/bin/python3
import http.client, json, os, sys, time

ROOT = "/2020-01-01/extension"
does = os.environ.get("DOES", "")
name = os.path.basename(sys.argv[0])
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

def call(method, path, body=None, **headers):
    headers = {"Lambda-Extension-" + key.replace("_", "-"): text for key, text in headers.items()}
    api.request(method, ROOT + path, body, headers)
    answer = api.getresponse()
    return answer.status, answer.headers, json.loads(answer.read() or b"null")

def log(*words):
    print(name, *words, flush=True)

if does == "fail to start":
    sys.exit(3)
if does == "leave":
    sys.exit(0)
if does == "never ask":
    time.sleep(1000)
events = json.dumps({"events": ["INVOKE", "SHUTDOWN"]})
status, headers, registered = call("POST", "/register", events, Name=name)
assert status == 200 and registered["functionName"] and registered["functionVersion"] == "$LATEST", registered
own = {"Identifier": headers["Lambda-Extension-Identifier"]}
if does == "init error":
    call("POST", "/init/error", "{}", Function_Error_Type="Extension.NoKey", **own)
while True:
    status, headers, event = call("GET", "/event/next", **own)
    assert status == 200 and headers["Lambda-Extension-Event-Identifier"], event
    assert event["deadlineMs"] > time.time() * 1000
    if event["eventType"] == "SHUTDOWN":
        log("SHUTDOWN", event["shutdownReason"])
        if does == "stay":
            time.sleep(1000)
        time.sleep(0.3)
        log("goodbye")
        sys.exit(0)
    log("INVOKE", event["requestId"], event["invokedFunctionArn"].rsplit(":", 1)[1], event["tracing"]["type"])
    if does == "crash":
        os.abort()
    if does == "exit error":
        call("POST", "/exit/error", "{}", Function_Error_Type="Extension.Lost", **own)
    time.sleep({"slow": 3, "hang": 1000}.get(does, 0))
    log("done")
"""
APP = """
import time

def handler(event, context):
    time.sleep(event.get("seconds", 0))
    return context.aws_request_id
"""


def archive(extensions):
    """A layer with these programs, and a file beside them that is none."""
    return programs(extensions, {"extensions/README": "no program"})


@pytest.fixture(scope="module")
def layers(running):
    """Two layers: one with the extension, one with it under two names."""
    client, arns = running.client(), []
    for names in [["watch"], ["watch", "other"]]:
        content = archive({f"extensions/{name}": WATCH for name in names})
        made = client.publish_layer_version(LayerName=f"layer-of-{len(names)}", Content={"ZipFile": content})
        arns.append(made["LayerVersionArn"])
    return arns


def make(client, name, layers, does="", **settings):
    settings = {"Timeout": 20, "Environment": {"Variables": {"DOES": does}}, **settings}
    create(client, name, zipped(app_py=APP), Layers=layers[:1], **settings)
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)


def lines(running, name):
    return re.findall(rf"\[{name}#\d+\] (.*)", running.log())


def test_extensions_receive_invoke_and_shutdown(running, layers):
    client = running.client()
    make(client, "watched", layers)
    client.update_function_configuration(FunctionName="watched", Layers=layers[1:])
    ids = [invoke(client, "watched", {})[0] for _ in range(2)]
    for request in ids:
        running.wait_for(rf"\[watched#\d+\] watch INVOKE {request} watched X-Amzn-Trace-Id")
        running.wait_for(rf"\[watched#\d+\] other INVOKE {request} watched")
    client.delete_function(FunctionName="watched")
    for name in ["watch", "other"]:
        running.wait_for(rf"\[watched#\d+\] {name} SHUTDOWN spindown")
        running.wait_for(rf"\[watched#\d+\] {name} goodbye")


def test_slow_extension_delays_the_next_invocation_but_not_the_answer(running, layers):
    client = running.client()
    make(client, "slow", layers, "slow")
    first, _ = invoke(client, "slow", {})
    assert "watch done" not in lines(running, "slow")
    second, _ = invoke(client, "slow", {})
    running.wait_for(rf"\[slow#\d+\] START RequestId: {second}")
    logged = lines(running, "slow")
    begins = [index for index, line in enumerate(logged) if line.startswith("START RequestId")]
    assert len(begins) == 2 and f"watch INVOKE {first}" in "\n".join(logged[: begins[1]])
    [answered] = [at for at, line in enumerate(logged) if line.startswith(f"REPORT RequestId: {first}")]
    assert answered < logged.index("watch done") < begins[1], logged
    assert len({event["instance"] for event in running.events("ready") if event["function"] == "slow"}) == 1


@pytest.mark.parametrize(
    "does, kind, message",
    [
        ("fail to start", "Extension.Crash", "extension watch exited with error: exit status 3"),
        ("leave", "Extension.Crash", "extension watch exited without"),
        ("init error", "Extension.InitError", "watch: Extension.NoKey"),
        ("never ask", "Sandbox.Timedout", "Init phase timed out"),
    ],
)
def test_failed_extension_start_fails_the_function_start(running, layers, does, kind, message):
    client, name = running.client(), does.replace(" ", "-")
    make(client, name, layers, does, Timeout=1)
    answer, error = invoke(client, name, {})
    assert error == "Unhandled" and answer["errorType"] == kind and message in answer["errorMessage"], answer
    client.delete_function(FunctionName=name)


@pytest.mark.parametrize(
    "does, kind, message",
    [
        ("crash", "Extension.Crash", "extension watch exited with error: signal: aborted"),
        ("exit error", "Extension.ExitError", "watch: Extension.Lost"),
    ],
)
def test_extension_exit_ends_the_instance(running, layers, does, kind, message):
    client, name = running.client(), does.replace(" ", "-")
    make(client, name, layers, does)
    answer, error = invoke(client, name, {"seconds": 10})
    assert error == "Unhandled" and answer["errorType"] == kind and message in answer["errorMessage"], answer
    assert answer["errorMessage"].startswith("RequestId: ")
    client.delete_function(FunctionName=name)


def test_hanging_extension_ends_the_instance_but_fails_no_request(running, layers):
    client = running.client()
    make(client, "hang", layers, "hang", Timeout=5)
    ids = [invoke(client, "hang", {}) for _ in range(2)]
    assert [error for _, error in ids] == [None, None], ids
    running.wait_for(r"\[hang#\d+\]: answered, but an extension was not done in 5 s")
    client.delete_function(FunctionName="hang")


def test_extension_that_ignores_shutdown_is_killed(running, layers):
    client = running.client()
    make(client, "stay", layers, "stay")
    assert invoke(client, "stay", {})[1] is None
    client.delete_function(FunctionName="stay")
    running.wait_for(r"\[stay#\d+\] watch SHUTDOWN spindown")
    until(lambda: running.events("gone", function="stay"), running.state)


INTERNAL = """
import http.client, json, os, threading

ROOT = "/2020-01-01/extension"

def call(method, path, body=None, **headers):
    api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    headers = {"Lambda-Extension-" + key: text for key, text in headers.items()}
    api.request(method, ROOT + path, body, headers)
    answer = api.getresponse()
    return answer.status, answer.headers["Lambda-Extension-Identifier"], json.loads(answer.read() or b"null")

def kind(*arguments, **headers):
    status, _, error = call(*arguments, **headers)
    return [status, error["errorType"]]

received = []
early = {
    "nameless": kind("POST", "/register", '{"events": []}'),
    "shutdown": kind("POST", "/register", '{"events": ["SHUTDOWN"]}', Name="inside"),
    "event": kind("POST", "/register", '{"events": ["OTHER"]}', Name="inside"),
    "body": kind("POST", "/register", '[', Name="inside"),
    "unknown": kind("GET", "/event/next", Identifier="x"),
    "unregistered": kind("POST", "/init/error"),
    "path": kind("GET", "/other"),
}
_, own, _ = call("POST", "/register", '{"events": ["INVOKE"]}', Name="inside")
early["twice"] = kind("POST", "/register", '{"events": []}', Name="inside")

def follow():
    while True:
        received.append(call("GET", "/event/next", Identifier=own)[2]["requestId"])

threading.Thread(target=follow, daemon=True).start()

def handler(event, context):
    late = kind("POST", "/register", '{"events": []}', Name="late")
    while context.aws_request_id not in received:
        pass
    return {"early": early, "late": late, "received": len(received)}
"""


def test_internal_extension_and_its_refused_calls(running):
    client = running.client()
    create(client, "internal", zipped(app_py=INTERNAL), Timeout=20)
    for number in [1, 2]:
        answer, error = invoke(client, "internal", {})
        assert error is None, answer
        assert answer["received"] == number and answer["late"] == [403, "Extension.RegistrationClosed"]
    assert answer["early"] == {
        "nameless": [403, "Extension.InvalidExtensionName"],
        "shutdown": [403, "Extension.InvalidEventType"],
        "event": [403, "Extension.InvalidEventType"],
        "body": [403, "InvalidRequestFormat"],
        "unknown": [403, "Extension.InvalidExtensionIdentifier"],
        "unregistered": [403, "Extension.MissingExtensionIdentifier"],
        "path": [404, "UnknownPath"],
        "twice": [403, "Extension.InvalidExtensionState"],
    }
