"""SnapStart of functions that a hook or an event has primed: what a first call does is in the snapshot."""

import json
import socketserver
import threading

import pytest
from calls import PYTHON, create, invoke, open_folder, until, zipped
from conftest import Worker
from test_nodejs import RUNTIME, version
from test_snapshots import HAS_SNAPSHOT, SNAP_START, at_once_until, is_restored

EVENT = {"number": 7, "text": "a\nb", "seconds": 0}
IN_PYTHON = """
import os, time
ran = []

def handler(event, context):
    if not ran:
        time.sleep(0.2)
    if event.get("fails"):
        raise ValueError("as asked")
    left = context.get_remaining_time_in_millis()
    ran.append([event, context.invoked_function_arn, len(context.aws_request_id), 1000 < left < 61_000])
    time.sleep(event["seconds"])
    return {"first": ran[0], "count": len(ran), "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
            "stream": context.log_stream_name, "marked": "MAYFLY_SNAPSHOT_PRIMED" in os.environ}
"""
IN_NODEJS = """
const ran = [];
const answer = async (event, context) => {
  if (event.fails) throw new RangeError("as asked");
  const left = context.getRemainingTimeInMillis();
  ran.push([event, context.invokedFunctionArn, context.awsRequestId.length, left > 1000 && left < 61000]);
  await new Promise((resolve) => setTimeout(resolve, 1000 * event.seconds));
  return {
    first: ran[0], count: ran.length, type: process.env.AWS_LAMBDA_INITIALIZATION_TYPE,
    stream: process.env.AWS_LAMBDA_LOG_STREAM_NAME, marked: "MAYFLY_SNAPSHOT_PRIMED" in process.env,
  };
};
"""
RETURNS = IN_NODEJS + "exports.handler = answer;\n"
CALLS_BACK = (
    IN_NODEJS
    + "exports.handler = (event, context, callback) => void answer(event, context).then("
    + "(value) => callback(null, value), callback);\n"
)
STREAMS = (
    IN_NODEJS
    + "exports.handler = awslambda.streamifyResponse(async (event, stream, context) => {\n"
    + "  stream.setContentType('application/json');\n"
    + "  stream.end(JSON.stringify(await answer(event, context)));\n});\n"
)
# As packages for UUIDs do.
STOCKS = RETURNS.replace(
    "ran.push(", "if (!ran.length) crypto.getRandomValues(new Uint8Array(256));\n  ran.push("
)
FUNCTIONS = {"python": (PYTHON, "app.py", IN_PYTHON, "event.json")}
if version() in ("20", "22", "24"):
    FUNCTIONS |= {
        "returns": (RUNTIME, "app.js", RETURNS, "event.json"),
        "calls-back": (RUNTIME, "app.js", CALLS_BACK, "event.json"),
        "streams": (RUNTIME, "app.js", STREAMS, "event.json"),
        "rejects": (RUNTIME, "app.js", RETURNS, "fails.json"),
        "stocks": (RUNTIME, "app.js", STOCKS, "event.json"),
    }
FUNCTIONS["raises"] = (PYTHON, "app.py", IN_PYTHON, "fails.json")
PRIMES = "the event that primes it: "
FAILING = {
    "raises": PRIMES + "ValueError: as asked",
    "rejects": PRIMES + "RangeError: as asked",
    "stocks": "it keeps random bytes that all copies would have",
}


@pytest.fixture(scope="module")
def primed(tmp_path_factory):
    folder, resources = open_folder(tmp_path_factory, "primed"), {}
    (folder / "event.json").write_text(json.dumps(EVENT, indent=2))
    (folder / "fails.json").write_text('{"fails": true}\n')
    for name, (runtime, file, code, event) in FUNCTIONS.items():
        (folder / name).mkdir()
        (folder / name / file).write_text(code)
        about = {"FunctionName": name, "CodeUri": name, "Runtime": runtime, "Timeout": 60}
        resources[name.replace("-", "")] = {
            "Type": "AWS::Serverless::Function",
            "Metadata": {"Mayfly": {"Snapshot": {"Prime": event}}},
            "Properties": {**about, "Handler": "app.handler", "MemorySize": 256},
        }
    (folder / "template.json").write_text(json.dumps({"Resources": resources}))
    with Worker(str(folder / "template.json"), "--burst", "4") as worker:
        yield worker


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in FAILING])
def test_event_of_the_template_primes_the_snapshot(primed, name):
    client = primed.client(max_pool_connections=4)
    mine = {"seconds": 0, "number": 1}
    first, error = invoke(client, name, mine)
    assert error is None and (first["count"], first["first"][0]) == (1, mine), first
    primed.wait_for(HAS_SNAPSHOT % name)
    enough = lambda answers: any(is_restored(one) and one["count"] == 2 for one in answers)  # noqa: E731
    answers = [one for one in at_once_until(enough, client, name, 4) if is_restored(one)]
    for answer in answers:
        event, arn, length, has_time = answer["first"]
        assert event == EVENT and arn.endswith(f":function:{name}") and (length, has_time) == (36, True)
        assert not answer["marked"]
    assert len({answer["stream"] for answer in answers}) > 0


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name in FAILING])
def test_failing_event_has_the_function_start_as_ever(primed, name):
    client = primed.client()
    answer, error = invoke(client, name, {"seconds": 0})
    assert error is None and answer["type"] == "on-demand"
    primed.wait_for(rf"\[{name}\] starts as ever, without a snapshot: .*{FAILING[name]}")


HOOK = """
import os, socket, time, snapshot_restore_py as hooks

def handler(event, context):
    time.sleep(event.get("seconds", 0))
    if not loaded:
        time.sleep(0.2)
        loaded.append(os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"])
    return {"loaded": loaded, "told": told, "stream": context and context.log_stream_name,
            "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]}

loaded, told = [], []
hooks.register_before_snapshot(handler, {}, None)

@hooks.register_after_restore
def connects():
    global connection
    host, _, port = os.environ.get("SERVICE", "").rpartition(":")
    if not host:
        return
    connection = socket.create_connection((host, int(port)), 20)
    connection.sendall(b"restored\\n")
    told.append(connection.recv(100).decode())
"""


class Upper(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


def test_hook_primes_the_snapshot(running):
    client = running.client(max_pool_connections=4)
    create(client, "by-hook", zipped(app_py=HOOK), **SNAP_START)
    client.publish_version(FunctionName="by-hook")
    running.wait_for(HAS_SNAPSHOT % "by-hook")
    seen = lambda answers: [one for one in answers if is_restored(one)]  # noqa: E731
    for answer in seen(at_once_until(seen, client, "by-hook", 3, Qualifier="1")):
        assert answer["loaded"] == ["snap-start"]


def test_hook_after_the_restore_reaches_services_of_the_host():
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Upper) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        service = f"127.0.0.1:{server.server_address[1]}"
        with Worker("--reach", service) as reaching:
            client = reaching.client()
            variables = {"Variables": {"SERVICE": service}}
            create(client, "connects", zipped(app_py=HOOK), Environment=variables, **SNAP_START)
            client.publish_version(FunctionName="connects")
            reaching.wait_for(HAS_SNAPSHOT % "connects")
            calls = lambda: [invoke(client, "connects", {}, Qualifier="1")[0]]  # noqa: E731
            (answer,) = until(lambda: [one for one in calls() if is_restored(one)])
            assert answer["told"] == ["RESTORED\n"]
        server.shutdown()
        thread.join()
