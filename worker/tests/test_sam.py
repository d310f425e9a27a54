"""Projects as users have them: `sam build` output, templates that refer to an AWS account, events."""

import json
import signal
import time

import pytest
from calls import PYTHON, create, invoke, zipped
from conftest import HERE, Worker

# As `sam build` writes it: packages beside the code, and the file that named them.
TEMPLATE = """
AWSTemplateFormatVersion: '2010-09-09'
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: { Timeout: 10, Tracing: Active, LoggingConfig: { LogFormat: JSON } }
Resources:
  Table: { Type: AWS::DynamoDB::Table }
  Hello:
    Type: AWS::Serverless::Function
    Metadata: { SamResourceId: Hello }
    Properties:
      CodeUri: Hello
      Handler: app.lambda_handler
      Runtime: python3.11
      Architectures: [x86_64]
      Role: !GetAtt Role.Arn
      Environment:
        Variables:
          TABLE: !Ref Table
          STREAM: !GetAtt Table.StreamArn
          BUCKET: !Join ['-', [!Ref AWS::StackName, files]]
          IMPORTED: !ImportValue other-stack
          OWN: !GetAtt Hello.Arn
      Policies: [{ DynamoDBCrudPolicy: { TableName: !Ref Table } }]
      VpcConfig: !If [InNetwork, { SubnetIds: [a] }, !Ref AWS::NoValue]
      Events:
        Api: { Type: Api, Properties: { Path: /hello, Method: get } }
Outputs:
  Url: { Value: !Sub 'https://${ServerlessRestApi}.execute-api.${AWS::Region}.amazonaws.com/' }
""".replace("python3.11", PYTHON)
APP = """
import os, vendored
def lambda_handler(event, context):
    names = ["TABLE", "STREAM", "BUCKET", "IMPORTED", "OWN"]
    return {name: os.environ.get(name) for name in names} | {"v": vendored.V}
"""


def test_serves_sam_build_output_unchanged(tmp_path):
    code = tmp_path / "Hello"
    (code / "vendored-1.0.dist-info").mkdir(parents=True)
    (code / "vendored").mkdir()
    (code / "vendored/__init__.py").write_text("V = 1\n")
    (code / "requirements.txt").write_text("vendored\nrequests>=2\n")
    (code / "app.py").write_text(APP)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    with Worker(str(tmp_path / "template.yaml")) as running:
        answer, error = invoke(running.client(), "Hello")
        assert error is None, answer
        arn = "arn:aws:lambda:us-east-1:000000000000:function:Hello"
        assert answer == {
            "TABLE": "Table",
            "STREAM": "Table.StreamArn",
            "BUCKET": "mayfly-files",
            "IMPORTED": None,
            "OWN": arn,
            "v": 1,
        }
        # Each difference from an AWS account is a log line.
        for line in [
            r"requirements.txt: packages lie beside the code",
            r"Environment.Variables.TABLE: there is no Table here",
            r"Environment.Variables.IMPORTED: !ImportValue is not supported here",
            r"VpcConfig is not supported and passed over",
            r"REST API ServerlessRestApi, 1 route: http://ServerlessRestApi.execute-api.localhost:\d+/Prod/",
            r"Globals.Function.Tracing is not supported and passed over",
        ]:
            running.wait_for(line)


def test_refuses_unsupported_settings(client):
    code = zipped(app_py="def handler(event, context): return 1")
    for setting, reason in [
        ({"ImageConfig": {"Command": ["a"]}}, "ImageConfig is not supported for"),
        ({"DeadLetterConfig": {"TargetArn": "arn:aws:sqs:us-east-1:0:q"}}, "DeadLetterConfig is not"),
        ({"VpcConfig": {"SubnetIds": ["a"], "SecurityGroupIds": ["b"]}}, "VpcConfig is not"),
        ({"TracingConfig": {"Mode": "Active"}}, "TracingConfig is not"),
    ]:
        with pytest.raises(client.exceptions.InvalidParameterValueException) as caught:
            create(client, "silent", code, **setting)
        assert reason in caught.value.response["Error"]["Message"]
    made = create(client, "tagged", code, Tags={"team": "a", "stage": "b"}, Publish=False)
    client.tag_resource(Resource=made["FunctionArn"], Tags={"stage": "c", "more": "é"})
    client.untag_resource(Resource=made["FunctionArn"], TagKeys=["team", "none"])
    tags = {"stage": "c", "more": "é"}
    assert client.list_tags(Resource=made["FunctionArn"])["Tags"] == tags
    assert client.get_function(FunctionName="tagged")["Tags"] == tags
    client.delete_function(FunctionName="tagged")


def test_event_survives_a_killed_worker(tmp_path):
    template = str(HERE / "functions/template.yaml")
    state = str(tmp_path / "state")

    def send(client, seconds):
        event = json.dumps({"do": "count", "seconds": seconds})
        answer = client.invoke(FunctionName="single", InvocationType="Event", Payload=event)
        return answer["ResponseMetadata"]["RequestId"]

    with Worker(template, "--state", state) as running:
        client = running.client()
        done = send(client, 0)
        running.wait_for(f"REPORT RequestId: {done}")
        time.sleep(1)  # until the store has deleted it
        # One runs, the others wait: the function has one instance.
        ids = [send(client, 4), send(client, 0), send(client, 0)]
        running.wait_for(f"START RequestId: {ids[0]}")
        running.stop(signal.SIGKILL)
    with Worker(template, "--state", state) as restarted:
        for id in ids:
            restarted.wait_for(f"REPORT RequestId: {id}")
        assert done not in restarted.log()
        time.sleep(1)
    with Worker(template, "--state", state) as last:
        time.sleep(1)
        assert "RequestId" not in last.log(), "each is done"


def test_caller_receives_the_reason_of_an_instance_end(client):
    answer, error = invoke(client, "neighbour", {"do": "fill_memory"})
    assert error == "Unhandled" and "memory of 128 MB used up" in answer["errorMessage"], answer
