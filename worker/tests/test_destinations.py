"""Results of events: destinations receive them, and an event config sets how often they are tried."""

import json
import shutil
import signal

import pytest
from botocore.exceptions import ClientError
from calls import PYTHON, create, zipped
from conftest import Worker

RECEIVER = zipped(app_py="import json\ndef handler(event, context): print('RECEIVED', json.dumps(event))")
OURS = zipped(
    app_py="""
def handler(event, context):
    if event.get("fails"):
        raise ValueError("as asked")
    return {"seen": event}
"""
)
ARN = "arn:aws:lambda:us-east-1:000000000000:function:"


@pytest.fixture
def running(tmp_path):
    with Worker("--state", str(tmp_path)) as running:
        yield running


def send(client, name, event):
    sent = client.invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(event))
    return sent["ResponseMetadata"]["RequestId"]


def received(running, request):
    """The destination's record of a request."""
    line = running.wait_for(rf"RECEIVED (\{{.*{request}.*\}})").group(1)
    return json.loads(line)


def test_destination_receives_success_and_failure(running):
    client = running.client()
    create(client, "receiver", RECEIVER)
    create(client, "ours", OURS)
    to = {"Destination": ARN + "receiver"}
    made = client.put_function_event_invoke_config(
        FunctionName="ours", MaximumRetryAttempts=0, DestinationConfig={"OnSuccess": to, "OnFailure": to}
    )
    assert made["FunctionArn"] == ARN + "ours:$LATEST" and made["MaximumRetryAttempts"] == 0
    request = send(client, "ours", {"a": 1})
    record = received(running, request)
    context = record["requestContext"]
    assert (context["condition"], context["approximateInvokeCount"]) == ("Success", 1)
    assert context["requestId"] == request and context["functionArn"] == ARN + "ours:$LATEST"
    assert record["requestPayload"] == {"a": 1} and record["responsePayload"] == {"seen": {"a": 1}}
    assert record["responseContext"] == {"statusCode": 200, "executedVersion": "$LATEST"}
    record = received(running, send(client, "ours", {"fails": True}))
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["responseContext"]["functionError"] == "Unhandled"
    assert record["responsePayload"]["errorMessage"] == "as asked"
    # A synchronous caller receives the result itself.
    client.invoke(FunctionName="ours", Payload=b'{"waits": 1}')
    assert '"waits"' not in running.log()


def test_event_config_survives_a_killed_worker(tmp_path):
    with Worker("--state", str(tmp_path)) as first:
        client = first.client()
        create(client, "receiver", RECEIVER)
        create(client, "ours", OURS)
        client.put_function_event_invoke_config(
            FunctionName="ours",
            MaximumRetryAttempts=0,
            DestinationConfig={"OnFailure": {"Destination": ARN + "receiver"}},
        )
        first.stop(signal.SIGKILL)
    with Worker("--state", str(tmp_path)) as again:
        client = again.client()
        updated = client.update_function_event_invoke_config(FunctionName="ours", MaximumEventAgeInSeconds=60)
        known = client.get_function_event_invoke_config(FunctionName="ours")
        assert known["MaximumRetryAttempts"] == 0 and known["MaximumEventAgeInSeconds"] == 60
        assert known["DestinationConfig"] == updated["DestinationConfig"]
        assert known["DestinationConfig"]["OnFailure"] == {"Destination": ARN + "receiver"}
        assert received(again, send(client, "ours", {"fails": 1}))["requestPayload"] == {"fails": 1}
        listed = client.list_function_event_invoke_configs(FunctionName="ours")
        assert len(listed["FunctionEventInvokeConfigs"]) == 1
        client.delete_function_event_invoke_config(FunctionName="ours")
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.get_function_event_invoke_config(FunctionName="ours")


def test_destination_loop_ends(running):
    client = running.client()
    create(client, "round", zipped(app_py="def handler(event, context): pass"))
    client.put_function_event_invoke_config(
        FunctionName="round", DestinationConfig={"OnSuccess": {"Destination": ARN + "round"}}
    )
    send(client, "round", {"a": 1})
    running.wait_for("round receives no result: functions are each other's destinations in a circle")
    assert running.log().count("REPORT RequestId") == 17


def test_destinations_must_be_functions(running):
    # Without boto3's own checks, so that the worker receives these calls.
    client = running.client(parameter_validation=False)
    create(client, "ours", OURS)
    for wrong in [
        {"DestinationConfig": {"OnFailure": {"Destination": "arn:aws:sqs:us-east-1:000000000000:q"}}},
        {"MaximumRetryAttempts": 3},
        {"MaximumEventAgeInSeconds": 10},
        {"Qualifier": "1", "MaximumRetryAttempts": 1},
    ]:
        with pytest.raises(ClientError):
            client.put_function_event_invoke_config(FunctionName="ours", **wrong)
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_function_event_invoke_config(FunctionName="ours")


TEMPLATE = """
Resources:
  Receiver:
    Type: AWS::Serverless::Function
    Properties: { CodeUri: receiver/, Handler: app.handler, Runtime: python3.11 }
  Ours:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: ours/
      Handler: app.handler
      Runtime: python3.11
      EventInvokeConfig:
        MaximumRetryAttempts: 0
        DestinationConfig:
          OnFailure: { Type: Lambda, Destination: !GetAtt Receiver.Arn }
          OnSuccess: { Type: SQS }
""".replace("python3.11", PYTHON)


def test_template_sets_destinations(tmp_path):
    for name, code in {"receiver": RECEIVER, "ours": OURS}.items():
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.zip").write_bytes(code)
        shutil.unpack_archive(tmp_path / f"{name}.zip", tmp_path / name)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    with Worker(str(tmp_path / "template.yaml")) as running:
        running.wait_for("OnSuccess of Type SQS is not supported and passed over")
        record = received(running, send(running.client(), "Ours", {"fails": 1}))
        assert record["requestContext"]["functionArn"] == ARN + "Ours:$LATEST"
