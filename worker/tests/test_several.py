"""Several requests at once in one instance, as on Lambda's managed instances, in Python and Node.js."""

import base64
import collections
import concurrent.futures
import json
import re

import pytest
from calls import PYTHON, create, invoke, programs, provider, until, zipped
from conftest import Worker
from images import Image, create_image, layer
from test_nodejs import RUNTIME, version
from test_tenants import PER_TENANT
from test_termination import STAYS

PYTHON_CODE = """
import os, time
def meet(event):
    "Waits until as many requests are here as the event says."
    folder = "/tmp/" + event["meeting"]
    os.makedirs(folder, exist_ok=True)
    open(folder + "/" + str(event["number"]), "w").close()
    until = time.monotonic() + 60
    while len(os.listdir(folder)) < event["of"] and time.monotonic() < until:
        time.sleep(0.01)
def handler(event, context):
    print("ran", context.aws_request_id)
    if "meeting" in event:
        meet(event)
    if event.get("leave"):
        os._exit(7)
    if event.get("raise"):
        raise ValueError("number %d" % event["number"])
    time.sleep(event.get("seconds", 0))
    print("done", context.aws_request_id)
    return {"id": context.aws_request_id, "number": event.get("number"), "pid": os.getpid(),
            "instance": os.environ["AWS_LAMBDA_LOG_STREAM_NAME"],
            "at_once": os.environ.get("AWS_LAMBDA_MAX_CONCURRENCY"),
            "kind": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
            "left_ms": context.get_remaining_time_in_millis()}
"""
NODE_CODE = """
import fs from "node:fs";
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export async function handler(event, context) {
  console.log("ran", context.awsRequestId);
  if (event.meeting) {
    const folder = "/tmp/" + event.meeting, until = Date.now() + 60000;
    fs.mkdirSync(folder, { recursive: true });
    fs.writeFileSync(folder + "/" + event.number, "");
    while (fs.readdirSync(folder).length < event.of && Date.now() < until) await sleep(10);
  }
  if (event.leave) process.exit(7);
  if (event.raise) throw new RangeError("number " + event.number);
  await sleep(1000 * (event.seconds ?? 0));
  console.log("done", context.awsRequestId);
  return { id: context.awsRequestId, number: event.number, pid: process.pid,
    instance: process.env.AWS_LAMBDA_LOG_STREAM_NAME, at_once: process.env.AWS_LAMBDA_MAX_CONCURRENCY,
    kind: process.env.AWS_LAMBDA_INITIALIZATION_TYPE, left_ms: context.getRemainingTimeInMillis() };
}
"""
has_node = version() in ("20", "22", "24")
needs_node = pytest.mark.skipif(not has_node, reason="this host has no such Node.js")
LANGUAGES = ["python", pytest.param("node", marks=needs_node)]


def make(client, name, language, at_once, instances=1, **settings):
    """One instance: on a busy machine its processes may start so slowly that the worker makes another."""
    settings = {"MemorySize": 512, "Timeout": 60, "CapacityProviderConfig": provider(at_once), **settings}
    if language == "python":
        made = create(client, name, zipped(app_py=PYTHON_CODE), **settings)
    else:
        made = create(client, name, zipped(**{"app.mjs": NODE_CODE}), Runtime=RUNTIME, **settings)
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=instances)
    return made


def call(client, name, event):
    """The answer, the error kind or None, and the request's id."""
    answer = client.invoke(FunctionName=name, Payload=json.dumps(event))
    body = json.loads(answer["Payload"].read())
    return body, answer.get("FunctionError"), answer["ResponseMetadata"]["RequestId"]


def at_once(client, name, events):
    with concurrent.futures.ThreadPoolExecutor(len(events)) as threads:
        return list(threads.map(lambda event: call(client, name, event), events))


def starts(running, name):
    return len(running.events("start", function=name))


@pytest.fixture(scope="module")
def several():
    with Worker() as running:
        yield running


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_instance_serves_as_many_requests_at_once_as_its_setting_says(several, language):
    client, name = several.client(), f"meet-{language}"
    made = make(client, name, language, 4)
    assert made["CapacityProviderConfig"] == provider(4)
    events = [{"meeting": "first", "number": number, "of": 4} for number in range(4)]
    answers = at_once(client, name, events)
    for number, (answer, error, request) in enumerate(answers):
        assert error is None, answer
        assert (answer["id"], answer["number"]) == (request, number)
        assert (answer["at_once"], answer["kind"]) == ("4", "lambda-managed-instances")
        assert 0 < answer["left_ms"] <= 60_000
    assert len({answer["instance"] for answer, _, _ in answers}) == 1
    assert len({answer["pid"] for answer, _, _ in answers}) == (4 if language == "python" else 1)
    assert starts(several, name) == 1
    # Its log has the lines of each, once.
    logged = several.client(service="logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    text = "\n".join(event["message"] for event in logged)
    for _, _, request in answers:
        for line in [
            f"START RequestId: {request} ",
            f"END RequestId: {request}",
            f"REPORT RequestId: {request}\t",
        ]:
            assert text.count(line) == 1, text


@pytest.mark.parametrize("language", LANGUAGES)
def test_more_requests_than_one_instance_has_places_start_another(several, language):
    client, name = several.client(), f"more-{language}"
    make(client, name, language, 2, instances=4)
    calling = {"seconds": 1.5}
    answers = at_once(client, name, [calling] * 4)
    assert all(error is None for _, error, _ in answers), answers
    at_most = collections.Counter(answer["instance"] for answer, _, _ in answers)
    assert starts(several, name) >= 2 or max(at_most.values()) == 4, at_most
    # The setting changes, and with it new instances.
    client.update_function_configuration(FunctionName=name, CapacityProviderConfig=provider(3))
    assert call(client, name, {})[0]["at_once"] == "3"


@pytest.mark.parametrize("language", LANGUAGES)
def test_errors_reach_the_caller_of_the_request_that_failed(several, language):
    client, name = several.client(), f"fails-{language}"
    make(client, name, language, 4)
    events = [{"meeting": "m", "number": number, "of": 4, "raise": number % 2} for number in range(4)]
    for number, (answer, error, _) in enumerate(at_once(client, name, events)):
        if number % 2:
            assert error == "Unhandled" and answer["errorMessage"] == f"number {number}", answer
        else:
            assert error is None and answer["number"] == number, answer
    assert starts(several, name) == 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_timeout_ends_one_request_and_no_other(several, language):
    client, name = several.client(), f"slow-{language}"
    make(client, name, language, 2, Timeout=6)
    first = call(client, name, {})[0]["instance"]
    slow, fast = at_once(client, name, [{"seconds": 9, "number": 0}, {"seconds": 1, "number": 1}])
    assert slow[1] == "Unhandled" and slow[0]["errorMessage"].endswith("Task timed out after 6.00 seconds")
    assert slow[2] in slow[0]["errorMessage"]
    assert (fast[1], fast[0]["number"], fast[0]["instance"]) == (None, 1, first), fast
    # The instance has a place left, and both once the late answer has been refused.
    assert call(client, name, {})[0]["instance"] == first
    logged = several.client(service="logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    assert any(f"{slow[2]} Task timed out after 6.00 seconds" in event["message"] for event in logged)
    several.wait_for(f"done {slow[2]}")
    events = [{"meeting": "again", "number": number, "of": 2} for number in range(2)]
    assert {answer.get("instance") for answer, _, _ in at_once(client, name, events)} == {first}
    assert starts(several, name) == 1


def test_a_process_that_ends_fails_its_request_alone(several):
    client, name = several.client(), "leaves-python"
    make(client, name, "python", 3)
    events = [{"meeting": "m", "number": number, "of": 3, "leave": number == 1} for number in range(3)]
    answers = at_once(client, name, events)
    assert [error for _, error, _ in answers] == [None, "Unhandled", None], answers
    failed, _, request = answers[1]
    assert failed["errorType"] == "Runtime.ExitError"
    assert failed["errorMessage"] == f"RequestId: {request} Error: Runtime exited with error: exit status 7"
    # Another process takes its place in the same instance.
    events = [{"meeting": "again", "number": number, "of": 3} for number in range(3)]
    again = at_once(client, name, events)
    assert {answer["instance"] for answer, _, _ in again} == {answers[0][0]["instance"]}, again
    assert len({answer["pid"] for answer, _, _ in again}) == 3
    assert starts(several, name) == 1


@needs_node
def test_an_instance_that_ends_fails_each_of_its_requests_with_its_own_reason(several):
    client, name = several.client(), "leaves-node"
    make(client, name, "node", 3)
    events = [
        {"meeting": "m", "number": number, "of": 3, "leave": number == 1, "seconds": 60}
        for number in range(3)
    ]
    for failed, error, request in at_once(client, name, events):
        assert error == "Unhandled"
        assert (
            failed["errorMessage"] == f"RequestId: {request} Error: Runtime exited with error: exit status 7"
        )
    assert call(client, name, {"number": 5})[0]["number"] == 5


SIGNALLED = (
    PYTHON_CODE
    + """
import signal
def ends(*_):
    os.write(1, b"SIGTERM in %d\\n" % os.getpid())
    os._exit(0)
signal.signal(signal.SIGTERM, ends)
"""
)


def test_each_process_of_an_instance_that_ends_receives_sigterm(several):
    client = several.client()
    content = programs({"extensions/stays": STAYS})
    arn = client.publish_layer_version(LayerName="stays", Content={"ZipFile": content})["LayerVersionArn"]

    def signalled(name):
        """The processes of an instance, and those of them that its end reaches."""
        settings = {"CapacityProviderConfig": provider(3), "Layers": [arn], "MemorySize": 512, "Timeout": 60}
        create(client, name, zipped(app_py=SIGNALLED), **settings)
        client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)
        events = [{"meeting": "m", "number": number, "of": 3} for number in range(3)]
        there = {answer["pid"] for answer, _, _ in at_once(client, name, events)}
        client.delete_function(FunctionName=name)
        until(lambda: several.events("gone", function=name), several.state)
        logs = several.client(service="logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")
        text = "\n".join(event["message"] for event in logs["events"])
        return there, {int(process) for process in re.findall(r"SIGTERM in (\d+)", text)}

    # On a busy machine the runtime's 0.6 s may pass before it has processor time.
    for attempt in range(8):
        there, reached = signalled(f"signalled-{attempt}")
        if reached == there:
            break
    assert len(there) == 3 and reached == there


ROOM = """
from mayfly_bootstrap import rest
{code}
def handler(event, context):
    held = os.urandom(event["mib"] << 20)
    # Its instance has more, so that it is not ended for what the other process holds.
    os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] = "256"
    meet(event)
    room = rest.has_room()
    meet({{**event, "meeting": event["meeting"] + "-end"}})
    return [room, len(held)]
"""


def test_memory_left_to_merge_in_counts_all_processes(several):
    client, name = several.client(), "room"
    code = PYTHON_CODE[: PYTHON_CODE.index("def handler")]
    settings = {"CapacityProviderConfig": provider(2), "MemorySize": 768, "Timeout": 60}
    create(client, name, zipped(app_py=ROOM.format(code=code)), **settings)
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)
    for meeting, mib, expected in [("few", 0, True), ("much", 240, False), ("again", 0, True)]:
        events = [{"meeting": meeting, "number": number, "of": 2, "mib": mib * number} for number in range(2)]
        rooms = [answer[0] for answer, _, _ in at_once(client, name, events)]
        assert rooms == [expected] * 2, (mib, rooms)


TENANTS = PYTHON_CODE.replace('return {"id"', 'return {"tenant": context.tenant_id, "id"')


def test_an_instance_of_several_requests_serves_one_tenant(several):
    client, name = several.client(), "of-tenants"
    create(
        client,
        name,
        zipped(app_py=TENANTS),
        **{"MemorySize": 512, "Timeout": 60, "CapacityProviderConfig": provider(2), **PER_TENANT},
    )

    def ask(number):
        tenant = ["blue", "green"][number % 2]
        event = json.dumps({"meeting": "m", "number": number, "of": 2})
        answer = client.invoke(FunctionName=name, Payload=event, TenantId=tenant)
        body = json.loads(answer["Payload"].read())
        assert (body["tenant"], body["id"]) == (tenant, answer["ResponseMetadata"]["RequestId"])
        return tenant, body["instance"]

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        served = collections.defaultdict(set)
        for tenant, instance in threads.map(ask, range(4)):
            served[tenant].add(instance)
    assert len(served["blue"]) == len(served["green"]) == 1 and served["blue"] != served["green"], served


def test_platform_events_of_requests_at_once_name_their_own(several):
    client, name = several.client(), "events-python"
    levels = {"LogFormat": "JSON", "SystemLogLevel": "DEBUG"}
    make(client, name, "python", 2, LoggingConfig=levels)
    events = [{"meeting": "m", "number": number, "of": 2} for number in range(2)]
    answers = at_once(client, name, events)
    logged = several.client(service="logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    lines = [json.loads(event["message"]) for event in logged if event["message"].startswith('{"time"')]
    of_start = [line["type"] for line in lines if "requestId" not in line["record"]]
    assert of_start == ["platform.initStart", "platform.initRuntimeDone", "platform.initReport"], lines
    for _, _, request in answers:
        own = [line for line in lines if line["record"].get("requestId") == request]
        expected = ["platform.start", "platform.runtimeDone", "platform.report"]
        assert [line["type"] for line in own] == expected, lines
        assert own[-1]["record"]["metrics"]["durationMs"] > 0, own


def test_tail_of_a_log_has_the_lines_of_its_own_request(several):
    client, name = several.client(), "tail-python"
    make(client, name, "python", 2)

    def tail(number):
        event = json.dumps({"meeting": "m", "number": number, "of": 2})
        answer = client.invoke(FunctionName=name, LogType="Tail", Payload=event)
        return answer["ResponseMetadata"]["RequestId"], base64.b64decode(answer["LogResult"]).decode()

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        tails = list(threads.map(tail, range(2)))
    for request, text in tails:
        assert f"REPORT RequestId: {request}" in text
        assert set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", text)) == {request}, text


def test_a_figure_out_of_range_is_refused_by_name(several):
    client = several.client()
    text = "PerExecutionEnvironmentMaxConcurrency.* 1 to 1600"
    with pytest.raises(client.exceptions.InvalidParameterValueException, match=text):
        make(client, "refused", "python", 1601)


def test_figure_of_an_image_is_passed_over_with_a_line(place):
    with Worker("--code-from", str(place)) as running:
        image = Image(
            layer(("bootstrap", b"")), Entrypoint=["/bootstrap"], Env=["AWS_LAMBDA_MAX_CONCURRENCY=4"]
        )
        create_image(running.client(), "own-figure", image.archive(place / "own.tar"))
        running.wait_for("own-figure: the image's AWS_LAMBDA_MAX_CONCURRENCY=4 is passed over")


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Provider:
    Type: AWS::Serverless::CapacityProvider
    Properties: {{CapacityProviderName: any}}
  OfSam:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: of-sam
      Runtime: {runtime}
      Handler: app.handler
      CodeUri: code
      MemorySize: 256
      CapacityProviderConfig: {{Arn: !GetAtt Provider.Arn, PerExecutionEnvironmentMaxConcurrency: 2}}
  OfMayfly:
    Type: AWS::Serverless::Function
    Metadata: {{Mayfly: {{Concurrency: 3}}}}
    Properties:
      FunctionName: of-mayfly
      Runtime: {runtime}
      Handler: app.handler
      CodeUri: code
      MemorySize: 256
"""


def test_template_says_how_many_requests_an_instance_serves(tmp_path):
    for folder in [tmp_path, *tmp_path.parents[:3]]:
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").write_text(PYTHON_CODE)
    (tmp_path / "template.yaml").write_text(TEMPLATE.format(runtime=PYTHON))
    with Worker(str(tmp_path / "template.yaml")) as running:
        client = running.client()
        for name, most in [("of-sam", "2"), ("of-mayfly", "3")]:
            answer, error = invoke(client, name, {})
            assert (error, answer["at_once"]) == (None, most), answer
