"""Functions that are called from queues (Events of Type SQS): batches, failures, kills, SIGHUP."""

import json
import signal
import subprocess

import pytest
from calls import PYTHON, until
from conftest import MAYFLY, Worker
from sqs_server import served

APP = """
import json, time

def handler(event, context):
    failures = []
    for record in event["Records"]:
        received = [record["body"], record["attributes"]["ApproximateReceiveCount"], record["eventSourceARN"]]
        print("GOT", json.dumps(received), flush=True)
        word = record["messageAttributes"].get("Word", {})
        assert not word or (word["stringValue"], word["dataType"]) == ("blue", "String"), word
        if record["body"].startswith("poison"):
            failures.append({"itemIdentifier": record["messageId"]})
        if record["body"] == "slow":
            time.sleep(1000)
    print("BATCH", len(event["Records"]), context.invoked_function_arn, flush=True)
    if failures and not event["Records"][0]["eventSourceARN"].endswith("some"):
        raise ValueError("all of them")
    return {"batchItemFailures": failures}
"""
TEMPLATE = """
Globals: {{Function: {{Runtime: python3.11, Handler: app.handler, CodeUri: app, Timeout: 20}}}}
Resources:
  Named: {{Type: AWS::SQS::Queue, Properties: {{QueueName: some}}}}
  Consumer:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: consumer
      AutoPublishAlias: live
      Events:
        Come: {{Type: SQS, Properties: {{Queue: {queue}{more}}}}}
        Web: {{Type: Api, Properties: {{Path: /, Method: get}}}}
""".replace("python3.11", PYTHON)
ARN = "'arn:aws:sqs:us-east-1:000000000000:{}'"
PARTIAL = ", FunctionResponseTypes: [ReportBatchItemFailures]"


@pytest.fixture
def template(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app/app.py").write_text(APP)

    def write(queue, more=""):
        path = tmp_path / "template.yaml"
        path.write_text(TEMPLATE.format(queue=queue, more=more))
        return str(path)

    return write


def got(running):
    lines = [line.split("GOT ", 1)[1] for line in running.log().splitlines() if "GOT " in line]
    return [json.loads(line) for line in lines]


def received_again(running, wanted):
    return [body for body, count, _ in got(running) if body == wanted and int(count) > 1]


def test_each_message_is_processed_and_deleted(template):
    with served("orders") as queues:
        path = template(ARN.format("orders"), ", BatchSize: 4")
        with Worker(path, "--queues", queues.address) as running:
            word = {"Word": {"StringValue": "blue", "DataType": "String"}}
            queues.send("orders", [f"m{number}" for number in range(23)], MessageAttributes=word)
            until(lambda: not queues.bodies("orders"), running.log)
            assert {body for body, *_ in got(running)} == {f"m{number}" for number in range(23)}
            assert {arn for *_, arn in got(running)} == {ARN.format("orders").strip("'")}
            assert max(queues.batch_sizes) <= 4
            assert ":function:consumer:live" in running.log(), "the alias is called"
            assert "REST API ServerlessRestApi" in running.log(), "its other event is served as well"


def test_failed_batch_is_delivered_again_whole(template):
    path = template(ARN.format("orders"))
    with served("orders") as queues, Worker(path, "--queues", queues.address) as running:
        queues.send("orders", ["poison"])
        until(lambda: [count for _, count, _ in got(running)][1:2] == ["2"], running.log)
        queues.send("orders", ["good"])
        until(lambda: queues.bodies("orders") == ["poison"], running.log)
        running.wait_for("1 messages of orders: .*all of them")


def test_partially_failed_batch_deletes_the_rest(template):
    with served("some") as queues:
        queues.send("some", ["poison", "a", "b", "c"])
        more = PARTIAL + ", BatchSize: 20, MaximumBatchingWindowInSeconds: 1"
        with Worker(template("!GetAtt Named.Arn", more), "--queues", queues.address) as running:
            until(lambda: queues.bodies("some") == ["poison"], running.log)
            running.wait_for("BATCH [234]")
            until(lambda: received_again(running, "poison"), running.log)


def test_messages_of_a_killed_worker_are_delivered_again(template):
    with served("orders") as queues:
        path = template(ARN.format("orders"), ", BatchSize: 1")
        with Worker(path, "--queues", queues.address) as running:
            queues.send("orders", ["slow"])
            until(lambda: got(running), running.log)
            running.stop(signal.SIGKILL)
        assert queues.bodies("orders") == ["slow"], "it was not processed"
        with Worker(path, "--queues", queues.address) as running:
            until(lambda: received_again(running, "slow"), running.log)
            running.stop(signal.SIGKILL)


def test_queue_server_restart_and_template_reload(template):
    with served("orders", "other") as queues:
        path = template(ARN.format("orders"))
        with Worker(path, "--queues", queues.address) as running:
            until(lambda: "orders" in queues.looked_up, running.log)
            template(ARN.format("other"))
            running.process.send_signal(signal.SIGHUP)
            until(lambda: "other" in queues.looked_up, running.log)
            queues.send("other", ["now"])
            until(lambda: not queues.bodies("other"), running.log)
            template(ARN.format("missing"))
            running.process.send_signal(signal.SIGHUP)
            running.wait_for("queue missing: GetQueueUrl of .*QueueDoesNotExist")
            queues.send("other", ["not polled"])
            with queues.changed:
                queues.messages["missing"] = {}
            queues.send("missing", ["found"])
            until(lambda: not queues.bodies("missing"), running.log)
            assert queues.bodies("other") == ["not polled"]
    with Worker(path, "--queues", queues.address) as running:
        running.wait_for("queue missing: GetQueueUrl of")
        with served("missing", port=int(queues.address.rsplit(":", 1)[1])) as again:
            again.send("missing", ["at last"])
            until(lambda: not again.bodies("missing"), running.log)


@pytest.mark.parametrize(
    "more, arguments, reason",
    [
        ("", ["--strict"], "consumer: Events of Type SQS need a server"),
        ("", ["--queues", "10.0.0.1:9324"], "it must be a loopback address"),
        (", BatchSize: 0", ["--strict", "--queues", "127.0.0.1:9324"], "Events.Come: BatchSize is 0"),
        (
            ", FilterCriteria: {}",
            ["--strict", "--queues", "127.0.0.1:9324"],
            "unknown field `FilterCriteria`",
        ),
    ],
)
def test_invalid_queue_settings_are_refused(template, more, arguments, reason):
    command = [MAYFLY, "up", template(ARN.format("orders"), more), "--listen", "127.0.0.1:0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and reason in done.stderr, done.stderr
