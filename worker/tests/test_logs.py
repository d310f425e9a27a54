"""What functions print, by CloudWatch Logs' calls as boto3 sends them."""

import pytest
from calls import create, invoke, until, zipped
from conftest import Worker

APP = """
def handler(event, context):
    for word in event["print"]:
        print(word)
    return context.log_stream_name
"""
GROUP = "/aws/lambda/talks"


def messages(pages):
    return [event["message"] for page in pages for event in page["events"]]


def test_lines_are_found_by_group_stream_time_and_pattern(running):
    client = running.client()
    create(client, "talks", zipped(app_py=APP))
    logs = running.client(service="logs")
    stream, error = invoke(client, "talks", {"print": ["first error", "second", "third debug error"]})
    assert error is None, stream
    invoke(client, "talks", {"print": ["fourth"]})

    def found(pattern="", **wanted):
        pages = logs.get_paginator("filter_log_events").paginate(
            logGroupName=GROUP, filterPattern=pattern, **wanted
        )
        return messages(pages)

    everything = found()
    printed = [line for line in everything if not line.startswith(("START", "END", "REPORT"))]
    assert printed == ["first error", "second", "third debug error", "fourth"]
    assert everything[0].startswith("START RequestId: ") and everything[-1].startswith("REPORT RequestId: ")
    assert found(PaginationConfig={"PageSize": 2}) == everything
    assert found("error -debug") == ["first error"]
    assert found('?second ?"third debug"') == ["second", "third debug error"]
    assert found(logStreamNames=[stream]) == everything and found(logStreamNames=["other"]) == []
    first = logs.filter_log_events(logGroupName=GROUP, limit=1)["events"][0]
    assert first["logStreamName"] == stream and found(startTime=first["timestamp"]) == everything
    assert found(endTime=first["timestamp"]) == []
    with pytest.raises(logs.exceptions.InvalidParameterException, match="only terms"):
        found("{ $.level = 1 }")

    named = logs.describe_log_groups(logGroupNamePrefix="/aws/lambda/ta")["logGroups"]
    assert [group["logGroupName"] for group in named] == [GROUP]
    groups = logs.get_paginator("describe_log_groups").paginate(PaginationConfig={"PageSize": 1})
    assert GROUP in [group["logGroupName"] for page in groups for group in page["logGroups"]]
    streams = logs.describe_log_streams(logGroupName=GROUP, orderBy="LastEventTime", descending=True)
    assert streams["logStreams"][0]["logStreamName"] == stream

    of_stream = {"logGroupName": GROUP, "logStreamName": stream}
    last = logs.get_log_events(**of_stream, limit=2)
    assert messages([last]) == everything[-2:]
    before = logs.get_log_events(**of_stream, limit=2, nextToken=last["nextBackwardToken"])
    assert messages([before]) == everything[-4:-2]
    end = logs.get_log_events(**of_stream, startFromHead=True)
    assert messages([end]) == everything
    after = logs.get_log_events(**of_stream, nextToken=end["nextForwardToken"])
    assert messages([after]) == [] and after["nextForwardToken"] == end["nextForwardToken"]

    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.filter_log_events(logGroupName="/aws/lambda/missing")
    client.delete_function(FunctionName="talks")
    assert found()[: len(everything)] == everything, "its log outlives the function"


def test_ended_instance_logs_no_connection_error(running):
    client, logs = running.client(), running.client(service="logs")
    create(client, "leaves", zipped(app_py="def handler(event, context): print('here')"))
    for _ in range(3):
        assert invoke(client, "leaves", {})[1] is None
        client.update_function_configuration(FunctionName="leaves", Description="another")
    until(lambda: len(running.events("gone", function="leaves")) >= 3, lambda: running.events("stop"))
    logged = logs.filter_log_events(logGroupName="/aws/lambda/leaves")["events"]
    logged = [
        event["message"] for event in logged if not event["message"].startswith(("START", "END", "REPORT"))
    ]
    assert logged == ["here"] * 3, "its connection was closed before it was ended"
    client.delete_function(FunctionName="leaves")


def test_reading_logs_needs_the_key():
    keys = {"MAYFLY_ACCESS_KEY_ID": "AKID", "MAYFLY_SECRET_ACCESS_KEY": "s3cret"}
    with Worker(environment=keys) as running:
        assert running.client("AKID", "s3cret", service="logs").describe_log_groups()["logGroups"] == []
        with pytest.raises(Exception) as caught:
            running.client("AKID", "other", service="logs").describe_log_groups()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
