"""Schedules of a template, and events that nothing here sends."""

import json
import re

from conftest import Worker

TEMPLATE = """
Metadata: { Mayfly: { NearestRuntime: true } }
Resources:
  Tick:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.11
      Handler: app.handler
      CodeUri: code
      AutoPublishAlias: live
      Events:
        Often: { Type: Schedule, Properties: { Schedule: rate(1 minute) } }
        Own: { Type: ScheduleV2, Properties: { ScheduleExpression: rate(1 minute), Input: '{"own": 1}' } }
        Daily: { Type: Schedule, Properties: { Schedule: 'cron(0 3 ? * MON-FRI *)' } }
        Off:
          Type: ScheduleV2
          Properties: { ScheduleExpression: rate(1 minute), Input: '{"off": 1}', State: DISABLED }
        Wrong: { Type: Schedule, Properties: { Schedule: 'cron(0 3 * * *)' } }
        Table: { Type: DynamoDB, Properties: { Stream: !GetAtt Table.StreamArn, StartingPosition: LATEST } }
        Odd: { Type: Oddity }
  Table: { Type: AWS::DynamoDB::Table }
"""
APP = """
import json
def handler(event, context):
    print("called", context.invoked_function_arn.rsplit(":", 1)[1], json.dumps(event, sort_keys=True))
"""


def test_schedule_calls_the_function_at_its_time(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").write_text(APP)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    with Worker(str(tmp_path / "template.yaml")) as running:
        event = json.loads(running.wait_for(r"called live (\{\"account.*\})", 180).group(1))
        assert len(event.pop("id")) == 36
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event.pop("time"))
        assert event == {
            "version": "0",
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": "000000000000",
            "region": "us-east-1",
            "resources": ["arn:aws:events:us-east-1:000000000000:rule/TickOften"],
            "detail": {},
        }
        running.wait_for(r"called live \{\"own\": 1\}")
        assert '{"off": 1}' not in running.log()
        for line in [
            r"Tick.Events.Wrong: cron\(0 3 \* \* \*\) should have six fields: it is not served",
            r"Events.Table: events of Type DynamoDB are not served: a DynamoDB table would call the function",
            r"Events.Odd: events of Type Oddity are not served: an unknown source would call the function",
        ]:
            running.wait_for(line)
