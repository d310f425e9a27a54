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


def once(*names):
    """Queues that deliver no message again because a busy machine takes long."""
    return served(*names, visibility=300)


def received_again(running, wanted):
    return [body for body, count, _ in got(running) if body == wanted and int(count) > 1]


def test_each_message_is_processed_and_deleted(template):
    with served("orders") as queues:
        path = template(ARN.format("orders"), ", BatchSize: 4")
        with Worker(path, "--queues", queues.address) as running:
            word = {"Word": {"StringValue": "blue", "DataType": "String"}}
            queues.send("orders", [f"m{number}" for number in range(23)], MessageAttributes=word)
            until(lambda: not queues.bodies("orders"), running.log)
            sent = {f"m{number}" for number in range(23)}
            # The log may come later than the answer.
            until(lambda: {body for body, *_ in got(running)} >= sent, running.log)
            assert {body for body, *_ in got(running)} == sent
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


def filtered(*patterns):
    filters = [{"Pattern": json.dumps(pattern)} for pattern in patterns]
    return f", FilterCriteria: {json.dumps({'Filters': filters})}"


def test_filters_choose_messages_and_delete_the_others(template):
    body = {"kind": ["order", {"prefix": "re"}], "price": [{"numeric": [">", 10, "<=", 99.5]}]}
    either = {"$or": [{"kind": [{"equals-ignore-case": "REFUND"}]}, {"urgent": [{"exists": True}]}]}
    more = filtered({"body": body}, {"body": either}, {"body": [{"suffix": "!"}]})
    wanted = [
        json.dumps({"kind": "order", "price": 11}),
        json.dumps({"kind": "return", "price": 99.5}),
        json.dumps({"kind": "refund"}),
        json.dumps({"urgent": None}),
        "now!",
    ]
    others = [
        json.dumps({"kind": "order", "price": 10}),
        json.dumps({"kind": "other", "price": 50}),
        json.dumps({"kind": "order"}),
        json.dumps("now!"),
        "now",
        "{",
    ]
    path = template(ARN.format("orders"), more)
    with once("orders") as queues, Worker(path, "--queues", queues.address) as running:
        queues.send("orders", [*others, *wanted])
        until(lambda: not queues.bodies("orders"), running.log)
        # Its output may reach the log after its answer.
        until(lambda: sorted(body for body, *_ in got(running)) == sorted(wanted), running.log)


def test_fifo_queue_keeps_the_order_of_each_group(template):
    with once("orders.fifo") as queues:
        path = template(ARN.format("orders.fifo"), ", BatchSize: 3")
        with Worker(path, "--queues", queues.address) as running:
            client = queues.client()
            for number in range(12):
                for group in "ab":
                    client.send_message(
                        QueueUrl=f"{queues.url}/0/orders.fifo",
                        MessageBody=f"{group}{number}",
                        MessageGroupId=group,
                        MessageDeduplicationId=f"{group}{number // 2}",  # each second one is a duplicate
                    )
            until(lambda: not queues.bodies("orders.fifo"), running.log)
            until(lambda: len(got(running)) >= 12, running.log)
            bodies = [body for body, *_ in got(running)]
            for group in "ab":
                own = [body for body in bodies if body[0] == group]
                assert own == [f"{group}{number}" for number in range(0, 12, 2)]


def test_failed_message_of_a_fifo_queue_holds_its_group(template):
    with served("orders.fifo", visibility=2) as queues:
        path = template(ARN.format("orders.fifo"), ", BatchSize: 1")
        with Worker(path, "--queues", queues.address) as running:
            for body, group in [("poison", "a"), ("later", "a"), ("other", "b")]:
                queues.send("orders.fifo", [body], MessageGroupId=group, MessageDeduplicationId=body)
            until(lambda: received_again(running, "poison"), running.log)
            bodies = [body for body, *_ in got(running)]
            assert "later" not in bodies and "other" in bodies
            assert queues.bodies("orders.fifo") == ["later", "poison"]


RESOURCE = """
  Second:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {FunctionName: !Ref Consumer.Alias, EventSourceArn: !GetAtt Named.Arn, BatchSize: '2'}
  Stream: {Type: AWS::Kinesis::Stream}
  Third:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {FunctionName: !Ref Consumer, EventSourceArn: !GetAtt Stream.Arn, StartingPosition: LATEST}
"""


def test_mapping_is_a_resource_of_its_own(template):
    path = template(ARN.format("orders"))
    with open(path, "a") as file:
        file.write(RESOURCE)
    with served("orders", "some") as queues, Worker(path, "--queues", queues.address) as running:
        queues.send("some", ["a", "b", "c"])
        until(lambda: not queues.bodies("some"), running.log)
        until(lambda: {body for body, *_ in got(running)} == {"a", "b", "c"}, running.log)
        assert max(queues.batch_sizes) <= 2
        running.wait_for("Resources.Third: it is not served: a Kinesis stream would call the function")
        listed = running.client().list_event_source_mappings()["EventSourceMappings"]
        sources = {one["EventSourceArn"].rsplit(":", 1)[1]: one["BatchSize"] for one in listed}
        assert sources == {"orders": 10, "some": 2}


def test_api_adds_changes_and_removes_queues(template, tmp_path):
    """The calls that Terraform's provider makes for aws_lambda_event_source_mapping."""
    path, state = template(ARN.format("orders"), ", Enabled: false"), str(tmp_path / "state")
    arn = ARN.format("some").strip("'")
    with once("orders", "some") as queues:
        arguments = [path, "--queues", queues.address, "--state", state]
        with Worker(*arguments) as running:
            client = running.client()
            made = client.create_event_source_mapping(
                FunctionName="consumer",
                EventSourceArn=arn,
                BatchSize=5,
                FilterCriteria={"Filters": [{"Pattern": json.dumps({"body": ["a", "b"]})}]},
                ScalingConfig={"MaximumConcurrency": 3},
                Tags={"team": "a"},
            )
            of = {"UUID": made["UUID"]}

            def read():
                answer = running.client().get_event_source_mapping(**of)
                answer.pop("ResponseMetadata")
                return answer

            made.pop("ResponseMetadata")
            assert read() == made and made["State"] == "Enabled"
            assert client.list_tags(Resource=made["EventSourceMappingArn"])["Tags"] == {"team": "a"}
            with pytest.raises(client.exceptions.ResourceConflictException):
                client.create_event_source_mapping(FunctionName="consumer", EventSourceArn=arn)
            queues.send("some", ["a", "dropped"])
            until(lambda: not queues.bodies("some"), running.log)
            until(lambda: [body for body, *_ in got(running)] == ["a"], running.log)
        with Worker(*arguments) as running:
            client = running.client()
            assert read() == made, "a plan after a restart"
            queues.send("some", ["b"])
            until(lambda: got(running), running.log)
            changed = client.update_event_source_mapping(**of, Enabled=False, FilterCriteria={})
            assert (changed["State"], changed["BatchSize"]) == ("Disabled", 5)
            assert "FilterCriteria" not in changed and read()["State"] == "Disabled"
            client.tag_resource(Resource=made["EventSourceMappingArn"], Tags={"stage": "test"})
            client.untag_resource(Resource=made["EventSourceMappingArn"], TagKeys=["team"])
            assert client.list_tags(Resource=made["EventSourceMappingArn"])["Tags"] == {"stage": "test"}
            listed = client.list_event_source_mappings(FunctionName="consumer")["EventSourceMappings"]
            assert [one["UUID"] for one in listed] == [made["UUID"]]
            assert client.delete_event_source_mapping(**of)["State"] == "Deleting"
            with pytest.raises(client.exceptions.ResourceNotFoundException):
                client.get_event_source_mapping(**of)
            with pytest.raises(
                client.exceptions.InvalidParameterValueException, match="is no ARN of a queue"
            ):
                client.create_event_source_mapping(
                    FunctionName="consumer", EventSourceArn="arn:aws:kinesis:us-east-1:000000000000:stream/s"
                )
            with pytest.raises(client.exceptions.ResourceNotFoundException):
                client.create_event_source_mapping(FunctionName="missing", EventSourceArn=arn)


@pytest.mark.parametrize(
    "more, arguments, reason",
    [
        ("", ["--strict"], "consumer: Events of Type SQS need a server"),
        ("", ["--queues", "10.0.0.1:9324"], "it must be a loopback address"),
        (", BatchSize: 0", ["--strict", "--queues", "127.0.0.1:9324"], "Events.Come: BatchSize is 0"),
        (
            ", FilterCriteria: {Filters: [{Pattern: '{\"body\": 1}'}]}",
            ["--strict", "--queues", "127.0.0.1:9324"],
            "Events.Come: FilterCriteria: Pattern",
        ),
    ],
)
def test_invalid_queue_settings_are_refused(template, more, arguments, reason):
    command = [MAYFLY, "up", template(ARN.format("orders"), more), "--listen", "127.0.0.1:0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and reason in done.stderr, done.stderr
