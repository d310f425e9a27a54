"""The Lambda API as boto3 sees it."""

import base64
import concurrent.futures
import json
import pathlib
import signal
import time
import urllib.error
import urllib.request

import pytest
from calls import PYTHON, create, invoke, zipped
from conftest import Worker

FIRST = "def handler(event, context):\n    return ['first', event]\n"
SECOND = "def handler(event, context):\n    return ['second', event]\n"


def error_of(call, *arguments, **named):
    with pytest.raises(Exception) as caught:
        call(*arguments, **named)
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_function_create_update_and_delete(client):
    made = create(client, "life", zipped(app_py=FIRST), Description="d", Timeout=4)
    assert made["State"] == "Active" and made["CodeSize"] > 0 and made["Version"] == "$LATEST"
    client.get_waiter("function_active_v2").wait(FunctionName="life")
    assert invoke(client, "life", 1) == (["first", 1], None)
    assert invoke(client, made["FunctionArn"], 1) == (["first", 1], None)
    client.update_function_code(FunctionName="life", ZipFile=zipped(app_py=SECOND))
    client.get_waiter("function_updated_v2").wait(FunctionName="life")
    assert invoke(client, "life", 2) == (["second", 2], None)
    changed = client.update_function_configuration(FunctionName="life", MemorySize=256, Timeout=7)
    assert (changed["MemorySize"], changed["Timeout"], changed["Description"]) == (256, 7, "d")
    assert changed["RevisionId"] != made["RevisionId"]
    stale = {"FunctionName": "life", "RevisionId": made["RevisionId"]}
    assert error_of(client.update_function_configuration, **stale) == ("PreconditionFailedException", 412)
    shown = client.get_function(FunctionName="life")["Configuration"]
    assert shown["CodeSha256"] != made["CodeSha256"] and shown["MemorySize"] == 256
    client.delete_function(FunctionName="life")
    assert error_of(client.get_function, FunctionName="life") == ("ResourceNotFoundException", 404)


def test_code_in_a_folder_is_copied(tmp_path):
    (tmp_path / "app.py").write_text(FIRST)
    pathlib.Path(tmp_path).chmod(0o755)
    code = {"S3Bucket": "folder", "S3Key": str(tmp_path)}
    settings = {"Runtime": PYTHON, "Handler": "app.handler", "Role": "arn:aws:iam::000000000000:role/r"}
    with Worker("--code-from", str(tmp_path)) as running:
        client = running.client()
        client.create_function(FunctionName="folder", Code=code, **settings)
        (tmp_path / "app.py").write_text(SECOND)
        assert invoke(client, "folder", 1) == (["first", 1], None)
        client.update_function_code(FunctionName="folder", **code)
        assert invoke(client, "folder", 1) == (["second", 1], None)


def test_functions_are_listed_in_pages(client):
    pages = list(client.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 2}))
    names = [function["FunctionName"] for page in pages for function in page["Functions"]]
    assert len(pages) >= 3 and names == sorted(names)
    assert {"probe", "neighbour", "single", "raw"} <= set(names)


def test_errors_have_lambda_names(client):
    code = zipped(app_py=FIRST)
    assert error_of(create, client, "probe", code) == ("ResourceConflictException", 409)
    assert error_of(create, client, "new", b"no zip") == ("InvalidParameterValueException", 400)
    assert error_of(create, client, "new", code, Runtime="python3.7") == (
        "InvalidParameterValueException",
        400,
    )
    assert error_of(create, client, "new", code, MemorySize=10_240) == ("InvalidParameterValueException", 400)
    assert error_of(client.invoke, FunctionName="missing") == ("ResourceNotFoundException", 404)
    assert error_of(client.invoke, FunctionName="probe:7") == ("ResourceNotFoundException", 404)
    broken = {"FunctionName": "probe", "Payload": b"{"}
    assert error_of(client.invoke, **broken) == ("InvalidRequestContentException", 400)
    large = {"FunctionName": "probe", "Payload": b" " * (6 * 1024 * 1024 + 1)}
    assert error_of(client.invoke, **large) == ("RequestTooLargeException", 413)
    event = {"FunctionName": "probe", "InvocationType": "Event", "Payload": b'"' + b"x" * (1 << 20) + b'"'}
    assert error_of(client.invoke, **event) == ("RequestTooLargeException", 413)


def test_invocation_log_matches_lambda(client):
    answer = client.invoke(FunctionName="probe", LogType="Tail", Payload=json.dumps({"do": "count"}))
    log = base64.b64decode(answer["LogResult"]).decode()
    request = answer["ResponseMetadata"]["RequestId"]
    lines = log.splitlines()
    assert f"START RequestId: {request} Version: $LATEST" in lines
    assert f"ran {request}" in lines and lines.index(f"ran {request}") < lines.index(
        f"END RequestId: {request}"
    )
    assert lines[-1].startswith(f"REPORT RequestId: {request}\tDuration: ")
    assert "Memory Size: 128 MB\tMax Memory Used: " in lines[-1]


def test_event_is_accepted_at_once_and_run_later(worker, client):
    began = time.monotonic()
    answer = client.invoke(
        FunctionName="probe", InvocationType="Event", Payload=json.dumps({"do": "count", "seconds": 3})
    )
    assert answer["StatusCode"] == 202 and time.monotonic() - began < 2.5
    worker.wait_for(f"REPORT RequestId: {answer['ResponseMetadata']['RequestId']}")
    dry = client.invoke(FunctionName="probe", InvocationType="DryRun")
    assert dry["StatusCode"] == 204


def test_reserved_concurrency_limits_instances(client):
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        began = time.monotonic()
        sleeps = [threads.submit(invoke, client, "single", {"do": "sleep", "seconds": 0.4}) for _ in range(3)]
        assert [sleep.result() for sleep in sleeps] == [("slept", None)] * 3
        assert time.monotonic() - began >= 1.2, "one after the other"
    client.put_function_concurrency(FunctionName="single", ReservedConcurrentExecutions=0)
    assert error_of(client.invoke, FunctionName="single") == ("TooManyRequestsException", 429)
    with pytest.raises(client.exceptions.TooManyRequestsException) as caught:
        client.invoke(FunctionName="single")
    assert caught.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
    client.delete_function_concurrency(FunctionName="single")
    assert "ReservedConcurrentExecutions" not in client.get_function_concurrency(FunctionName="single")
    most = client.get_account_settings()["AccountLimit"]["ConcurrentExecutions"]
    too_many = {"FunctionName": "single", "ReservedConcurrentExecutions": most + 1}
    assert error_of(client.put_function_concurrency, **too_many) == ("InvalidParameterValueException", 400)
    client.put_function_concurrency(FunctionName="single", ReservedConcurrentExecutions=1)


def test_function_url_maps_http_requests(client):
    url = client.get_function_url_config(FunctionName="probe")["FunctionUrl"]
    request = urllib.request.Request(
        url + "a/b?x=1&y=%20", data=b"body", headers={"Content-Type": "text/plain"}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201 and answer.headers["X-Path"] == "/a/b"
        assert answer.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
        assert answer.read().decode() == "POST {'x': '1', 'y': ' '} body"
    made = client.create_function_url_config(FunctionName="neighbour", AuthType="AWS_IAM")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(made["FunctionUrl"])
    assert caught.value.code == 403
    client.update_function_url_config(FunctionName="neighbour", AuthType="NONE")
    assert urllib.request.urlopen(made["FunctionUrl"]).status == 201
    client.delete_function_url_config(FunctionName="neighbour")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(made["FunctionUrl"])
    assert caught.value.code == 404


def test_signatures_are_checked_when_credentials_are_configured():
    keys = {"MAYFLY_ACCESS_KEY_ID": "AKIDTEST", "MAYFLY_SECRET_ACCESS_KEY": "secret/+="}
    with Worker(environment=keys) as running:
        right = running.client("AKIDTEST", "secret/+=")
        create(right, "signed", zipped(app_py=FIRST))
        assert invoke(right, "signed", {"é": [1]}) == (["first", {"é": [1]}], None)
        assert (
            invoke(right, right.get_function(FunctionName="signed")["Configuration"]["FunctionArn"], 1)[1]
            is None
        )
        assert right.list_functions(MaxItems=1, Marker="a b+c/é")["Functions"]
        invalid = ("InvalidSignatureException", 403)
        assert error_of(running.client("AKIDTEST", "wrong").list_functions) == invalid
        unknown = ("UnrecognizedClientException", 403)
        assert error_of(running.client("OTHER", "secret/+=").list_functions) == unknown
        with pytest.raises(urllib.error.HTTPError) as caught:
            running.get("/2015-03-31/functions")
        assert caught.value.headers["x-amzn-errortype"] == "MissingAuthenticationTokenException"
        assert running.get("/healthz") == "ok\n"
        assert running.stop(signal.SIGINT) == 0


def test_lists_come_in_pages(worker):
    client = worker.client()
    create(client, "paged", zipped(app_py=FIRST))
    versions = ["$LATEST"]
    for text in ("one", "two", "three"):
        client.update_function_configuration(FunctionName="paged", Description=text, Timeout=len(versions))
        versions.append(client.publish_version(FunctionName="paged")["Version"])
        client.create_alias(FunctionName="paged", Name=text, FunctionVersion=versions[-1])
        client.publish_layer_version(LayerName="paged", Content={"ZipFile": zipped(text=text)})

    def pages(operation, field, key, **named):
        paginator = client.get_paginator(operation).paginate(PaginationConfig={"PageSize": 2}, **named)
        return [[item[key] for item in page[field]] for page in paginator]

    of = {"FunctionName": "paged"}
    assert pages("list_versions_by_function", "Versions", "Version", **of) == [versions[:2], versions[2:]]
    assert pages("list_aliases", "Aliases", "Name", **of) == [["one", "three"], ["two"]]
    assert pages("list_layer_versions", "LayerVersions", "Version", LayerName="paged") == [[3, 2], [1]]
    assert sum(len(page) for page in pages("list_layers", "Layers", "LayerName")) >= 1
    unchecked = worker.client(parameter_validation=False)
    refused = ("InvalidParameterValueException", 400)
    assert error_of(unchecked.list_aliases, **of, MaxItems=10001) == refused


def test_update_of_code_refuses_unsupported_settings(client):
    made = create(client, "moved", zipped(app_py=FIRST))
    code = {"FunctionName": "moved", "ZipFile": zipped(app_py=SECOND)}
    refused = ("InvalidParameterValueException", 400)
    assert error_of(client.update_function_code, **code, Architectures=["arm64"]) == refused
    key = "arn:aws:kms:us-east-1:000000000000:key/k"
    assert error_of(client.update_function_code, **code, SourceKMSKeyArn=key) == refused
    assert client.get_function_configuration(FunctionName="moved")["RevisionId"] == made["RevisionId"]
    client.update_function_code(**code, Architectures=["x86_64"], Publish=True)
    assert invoke(client, "moved", 1) == (["second", 1], None)
