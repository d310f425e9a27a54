"""The Telemetry API: extensions written against Lambda's guide, by hand and with AWS Labs' crate."""

import json
import os
import shutil
import subprocess

import pytest
from calls import create, invoke, until, zipped
from conftest import HERE
from test_extensions import archive
from test_extensions import lines as all_lines
from test_nodejs import version

# A server that keeps what it receives in a file, for the function, which lives in the same sandbox.
LISTENER = """#!/usr/bin/python3
import http.client, http.server, json, os, socketserver, sys, threading, time

port = int(os.environ.get("PORT", "4243"))
name = os.path.basename(sys.argv[0])
events = []

def call(method, path, body=None, **headers):
    api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    api.request(method, path, body, {"Lambda-Extension-" + key: text for key, text in headers.items()})
    answer = api.getresponse()
    return answer.status, answer.headers, json.loads(answer.read() or b"null")

def keep(batch):
    events.extend(batch)
    with open(f"/tmp/{name}.new", "w") as file:
        json.dump(events, file)
    os.replace(f"/tmp/{name}.new", f"/tmp/{name}")

class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        assert self.path == "/here" and self.headers["Content-Type"] == "application/json"
        batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        while os.environ.get("DOES") == "be slow" and not os.path.exists("/tmp/go"):
            time.sleep(0.01)
        keep(batch)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass

class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            keep([json.loads(line)])

wanted = json.loads(os.environ["SUBSCRIPTION"])
if os.environ.get("DOES") != "be dead":
    if wanted["destination"]["protocol"] == "HTTP":
        server = http.server.ThreadingHTTPServer(("sandbox.localdomain", port), Http)
    else:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", port), Lines)
    threading.Thread(target=server.serve_forever, daemon=True).start()
both = '{"events": ["INVOKE", "SHUTDOWN"]}'
_, headers, _ = call("POST", "/2020-01-01/extension/register", both, Name=name)
own = {"Identifier": headers["Lambda-Extension-Identifier"]}
print("subscribed", *call("PUT", "/2022-07-01/telemetry", json.dumps(wanted), **own)[::2], flush=True)
while True:
    _, _, event = call("GET", "/2020-01-01/extension/event/next", **own)
    if event["eventType"] == "SHUTDOWN":
        print("SHUTDOWN after", events[-1]["type"] if events else None, flush=True)
        sys.exit(0)
"""
APP = """
import json, os

def handler(event, context):
    if event["do"] == "print":
        for number in range(event["lines"]):
            print("line", number)
    if event["do"] == "exit":
        os._exit(1)
    if event["do"] == "read":
        try:
            return json.load(open("/tmp/" + event["name"]))
        except FileNotFoundError:
            return []
    if event["do"] == "go":
        open("/tmp/go", "w")
    return context.aws_request_id
"""


def subscription(**changed):
    return {
        "schemaVersion": "2022-12-13",
        "types": ["platform", "function", "extension"],
        "destination": {"protocol": "HTTP", "URI": "http://sandbox.localdomain:4243/here"},
        "buffering": {"maxItems": 1000, "maxBytes": 262144, "timeoutMs": 25},
        **changed,
    }


def make(running, name, wanted, programs=None, does="", **settings):
    client = running.client()
    programs = programs or {"extensions/listener": LISTENER}
    layer = client.publish_layer_version(LayerName=f"of-{name}", Content={"ZipFile": archive(programs)})
    variables = {"SUBSCRIPTION": json.dumps(wanted), "DOES": does}
    settings = {"Timeout": 30, "Environment": {"Variables": variables}, **settings}
    create(client, name, zipped(app_py=APP), Layers=[layer["LayerVersionArn"]], **settings)
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)
    return client


def received(client, function, until_kind, request, name="listener"):
    """The events that an extension has received, once one of this kind is among them."""

    def found():
        events, error = invoke(client, function, {"do": "read", "name": name})
        assert error is None, events
        ends = [event for event in events if event["type"] == until_kind]
        return events if any(event["record"].get("requestId") == request for event in ends) else None

    return until(found)


@pytest.mark.parametrize("protocol", ["HTTP", "TCP"])
def test_subscriber_receives_events_and_lines(running, protocol):
    wanted = subscription()
    if protocol == "TCP":
        wanted["destination"] = {"protocol": "TCP", "port": 4243}
    function = f"by-{protocol.lower()}"
    client = make(running, function, wanted)
    request, error = invoke(client, function, {"do": "print", "lines": 2})
    assert error is None, request
    events = received(client, function, "platform.report", request)
    first = [event["type"] for event in events[: [e["type"] for e in events].index("platform.report") + 1]]
    # Lines of extensions come whenever they are read, and the runtime may start before the extension.
    first = [kind for kind in first if kind != "extension"]
    assert first[0] == "platform.initStart", events
    assert set(first[1:3]) == {"platform.telemetrySubscription", "platform.initRuntimeDone"}, events
    assert first[3:] == [
        "platform.extension",
        "platform.initReport",
        "platform.start",
        "function",
        "function",
        "platform.runtimeDone",
        "platform.report",
    ], events
    records = {event["type"]: event["record"] for event in reversed(events)}
    assert records["platform.initStart"]["functionName"] == function
    assert records["platform.initStart"]["initializationType"] == "on-demand"
    assert records["platform.telemetrySubscription"] == {
        "name": "listener",
        "state": "Subscribed",
        "types": ["platform", "function", "extension"],
    }
    assert records["platform.extension"] == {
        "name": "listener",
        "state": "Ready",
        "events": ["INVOKE", "SHUTDOWN"],
    }
    assert records["platform.initReport"]["status"] == "success"
    assert records["platform.initReport"]["metrics"]["durationMs"] > 0
    assert (
        records["platform.start"]["requestId"] == request
        and records["platform.start"]["version"] == "$LATEST"
    )
    done, report = records["platform.runtimeDone"], records["platform.report"]
    assert (
        done["status"] == report["status"] == "success"
        and done["requestId"] == report["requestId"] == request
    )
    assert done["metrics"]["producedBytes"] == len(json.dumps(request)), done
    assert set(report["metrics"]) >= {"durationMs", "billedDurationMs", "memorySizeMB", "maxMemoryUsedMB"}
    assert [event["record"] for event in events if event["type"] == "function"][:2] == ["line 0", "line 1"]
    assert "subscribed 200 OK" in [event["record"] for event in events if event["type"] == "extension"]
    assert all(event["time"].endswith("Z") for event in events)
    client.delete_function(FunctionName=function)
    running.wait_for(rf"\[{function}#\d+\] SHUTDOWN after platform")


@pytest.mark.parametrize("schema, kind", [("2022-07-01", str), ("2022-12-13", dict), ("2025-01-29", dict)])
def test_json_lines_are_objects_since_2022_12(running, schema, kind):
    function = f"lines-{schema}"
    app = zipped(app_py=APP.replace('print("line", number)', 'print(json.dumps({"level": "debug", "n": 1}))'))
    wanted = subscription(schemaVersion=schema, types=["platform", "function"])
    client = make(running, function, wanted, LoggingConfig={"LogFormat": "JSON"})
    client.update_function_code(FunctionName=function, ZipFile=app)
    request, _ = invoke(client, function, {"do": "print", "lines": 1})
    events = received(client, function, "platform.report", request)
    # What the log's level leaves out reaches subscribers.
    [record] = [event["record"] for event in events if event["type"] == "function"]
    assert type(record) is kind and "debug" in str(record), record
    assert "extension" not in {event["type"] for event in events}


def test_subscriber_that_is_not_there_holds_nothing_up(running):
    client = make(running, "dead", subscription(), does="be dead")
    for _ in range(5):
        assert invoke(client, "dead", {"do": "print", "lines": 5000})[1] is None
    assert len(running.events("ready", function="dead")) == 1
    client.delete_function(FunctionName="dead")
    until(lambda: running.events("gone", function="dead"), running.state)


def test_slow_subscriber_learns_how_much_it_lost(running):
    client = make(running, "slow-one", subscription(types=["platform", "function"]), does="be slow")
    lines = 20_000
    requests = [invoke(client, "slow-one", {"do": "print", "lines": lines}) for _ in range(3)]
    assert [error for _, error in requests] == [None] * 3, requests
    assert invoke(client, "slow-one", {"do": "go"})[1] is None

    def reports_of_losses():
        events, error = invoke(client, "slow-one", {"do": "read", "name": "listener"})
        assert error is None, events
        return [event["record"] for event in events if event["type"] == "platform.logsDropped"]

    # Before, there may be no room for the events of another call.
    until(reports_of_losses)
    last, _ = invoke(client, "slow-one", {"do": "print", "lines": 1})
    events = received(client, "slow-one", "platform.report", last)
    lost = [event["record"] for event in events if event["type"] == "platform.logsDropped"]
    assert lost and "slower" in lost[0]["reason"], events[-3:]
    # No more than some deliveries were kept.
    assert sum(record["droppedRecords"] for record in lost) > 3 * lines - 5000, lost
    assert all(record["droppedBytes"] > record["droppedRecords"] for record in lost), lost


ASKS = """
import http.client, json, os

def call(method, path, body=None, **headers):
    api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    api.request(method, path, body, {"Lambda-Extension-" + key: text for key, text in headers.items()})
    answer = api.getresponse()
    body = json.loads(answer.read())
    return answer, [answer.status, body.get("errorType") if isinstance(body, dict) else body]

def subscribe(body, id=None, path="/2022-07-01/telemetry"):
    return call("PUT", path, body if isinstance(body, str) else json.dumps(body), Identifier=id or own)[1]

answer, _ = call("POST", "/2020-01-01/extension/register", '{"events": ["INVOKE"]}', Name="inside")
own = answer.headers["Lambda-Extension-Identifier"]
right = json.loads(os.environ["SUBSCRIPTION"])
found = {
    "unknown": subscribe(right, "6f1a3b6e-7f41-4b0e-8d0b-0a2b6c1f0000"),
    "body": subscribe("["),
    "types": subscribe({**right, "types": ["other"]}),
    "version": subscribe({**right, "schemaVersion": "2020-08-15"}),
    "host": subscribe({**right, "destination": {"protocol": "HTTP", "URI": "http://example.com:80"}}),
    "protocol": subscribe({**right, "destination": {"protocol": "UDP", "port": 1}}),
    "items": subscribe({**right, "buffering": {"maxItems": 10}}),
    "logs": subscribe(right, path="/2020-08-15/logs"),
    "right": subscribe(right),
    "again": subscribe(right),
}
import threading
def follow():
    while True:
        call("GET", "/2020-01-01/extension/event/next", Identifier=own)
threading.Thread(target=follow, daemon=True).start()

def handler(event, context):
    return {**found, "late": subscribe(right)}
"""


def test_wrong_subscriptions_are_refused(running):
    client = running.client()
    variables = {"Variables": {"SUBSCRIPTION": json.dumps(subscription())}}
    create(client, "asks", zipped(app_py=ASKS), Environment=variables, Timeout=20)
    answer, error = invoke(client, "asks")
    assert error is None, answer
    wrong = [400, "ValidationError"]
    assert answer == {
        "unknown": [403, "Extension.UnknownExtensionIdentifier"],
        **dict.fromkeys(["body", "types", "version", "host", "protocol", "items"], wrong),
        "logs": [202, "Logs.NotSupported"],
        "right": [200, "OK"],
        "again": [200, "OK"],
        "late": [403, "Telemetry.SubscriptionClosed"],
    }


NODE = """#!/usr/bin/env node
const http = require("node:http");
const api = `http://${process.env.AWS_LAMBDA_RUNTIME_API}`;
http.createServer((request, answer) => {
  let text = "";
  request.on("data", (part) => (text += part)).on("end", () => {
    for (const { type, record } of JSON.parse(text)) console.log("node", type, record.requestId ?? "");
    answer.end();
  });
}).listen(9009, "sandbox.localdomain", async () => {
  const headers = { "Lambda-Extension-Name": "node", "Content-Type": "application/json" };
  const body = JSON.stringify({ events: ["INVOKE", "SHUTDOWN"] });
  const made = await fetch(`${api}/2020-01-01/extension/register`, { method: "POST", headers, body });
  const own = { "Lambda-Extension-Identifier": made.headers.get("Lambda-Extension-Identifier") };
  const destination = { protocol: "HTTP", URI: "http://sandbox.localdomain:9009" };
  const buffering = { timeoutMs: 25 };
  const wanted = { schemaVersion: "2025-01-29", types: ["platform"], destination, buffering };
  await fetch(`${api}/2022-07-01/telemetry`, { method: "PUT", headers: own, body: JSON.stringify(wanted) });
  for (;;) {
    const event = await (await fetch(`${api}/2020-01-01/extension/event/next`, { headers: own })).json();
    if (event.eventType === "SHUTDOWN") process.exit(0);
  }
});
"""


@pytest.mark.skipif(version() not in ("20", "22", "24"), reason="this host has no such Node.js")
def test_extension_in_nodejs(running):
    client = make(running, "in-node", subscription(), {"extensions/node": NODE})
    request, error = invoke(client, "in-node", {"do": "print", "lines": 1})
    assert error is None, request
    client.delete_function(FunctionName="in-node")
    for kind in ["initStart", "initReport"]:
        running.wait_for(rf"\[in-node#\d+\] node platform.{kind}")
    for kind in ["start", "runtimeDone", "report"]:
        running.wait_for(rf"\[in-node#\d+\] node platform.{kind} {request}")


@pytest.fixture(scope="module")
def in_rust():
    """The extension with AWS Labs' crate; its compiled dependencies stay in build/."""
    if not os.environ.get("MAYFLY_SOAK"):
        pytest.skip("compiling the crate takes two minutes of processor time: set MAYFLY_SOAK")
    folder, target = HERE / "functions/telemetry_extension", HERE / "build/cargo"
    if not shutil.which("cargo"):
        pytest.skip("this host has no cargo")
    fetched = subprocess.run(["cargo", "fetch", "--locked"], cwd=folder, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the crate cannot be had: {fetched.stderr.strip().splitlines()[-1]}")
    built = subprocess.run(
        ["cargo", "build", "--release", "--locked", "--offline"],
        cwd=folder,
        env={**os.environ, "CARGO_TARGET_DIR": str(target)},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return (target / "release/telemetry-extension").read_bytes()


def test_extension_with_the_crate_of_aws_labs(running, in_rust):
    client = make(running, "in-rust", subscription(), {"extensions/telemetry-extension": in_rust})
    request, error = invoke(client, "in-rust", {"do": "print", "lines": 1})
    assert error is None, request
    assert invoke(client, "in-rust", {"do": "exit"})[1] == "Unhandled"
    running.wait_for(rf"\[in-rust#\d+\] crate report {request} Success 128")
    for line in [f"crate INVOKE {request}", "crate function line 0", "crate SHUTDOWN failure"]:
        running.wait_for(rf"\[in-rust#\d+\] {line}")
    lines = [line for line in all_lines(running, "in-rust") if line.startswith("crate {")]
    kinds = {json.loads(line.removeprefix("crate "))["type"] for line in lines}
    wanted = {f"platform.{kind}" for kind in ["initStart", "initReport", "start", "runtimeDone"]}
    assert wanted <= kinds, kinds
