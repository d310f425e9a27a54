"""What clients of AWS find in a function: credentials, their own worker, the metadata endpoint."""

import json
import subprocess
import time

import botocore.session
import pytest
from calls import create, invoke, open_folder, zipped
from conftest import HERE, MAYFLY, Worker

APP = """
import json, os, urllib.error, urllib.request
import boto3, botocore.exceptions

def handler(event, context):
    return globals()[event.get("do", "echo")](event)

def echo(event):
    return {"echo": event}

def environment(event):
    return dict(os.environ)

def call(event):
    client = boto3.client("lambda")
    answer = client.invoke(FunctionName=event["name"], **event.get("arguments", {}))
    return [answer["StatusCode"], answer["Payload"].read().decode()]

def stream(event):
    answer = boto3.client("lambda").invoke_with_response_stream(FunctionName=event["name"], Payload="{}")
    parts = [part["PayloadChunk"]["Payload"] for part in answer["EventStream"] if "PayloadChunk" in part]
    return b"".join(parts).decode()

def refusal(event):
    try:
        getattr(boto3.client(event["service"]), event["operation"])(**event.get("arguments", {}))
    except botocore.exceptions.ClientError as error:
        return [error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]]

def metadata(event):
    url = "http://" + os.environ["AWS_LAMBDA_METADATA_API"] + event["path"]
    own = os.environ["AWS_LAMBDA_METADATA_TOKEN"]
    headers = {name: value.replace("TOKEN", own) for name, value in event["headers"].items()}
    request = urllib.request.Request(url, method=event.get("method", "GET"), headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            names = ["Content-Type", "Cache-Control"]
            return [answer.status, json.load(answer), *[answer.headers[name] for name in names]]
    except urllib.error.HTTPError as error:
        return [error.code]
"""
LARGE = {"Timeout": 60, "MemorySize": 256}
OWN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
HERE_INSIDE = "http://127.0.0.1:9001"
PATH = "/2026-01-15/metadata/execution-environment"
BEARER = {"Authorization": "Bearer TOKEN"}
KEY = {"MAYFLY_ACCESS_KEY_ID": "AKIDTEST", "MAYFLY_SECRET_ACCESS_KEY": "secret"}


def make(client, **settings):
    for name in ("caller", "called"):
        create(client, name, zipped(app_py=APP), **{**LARGE, **settings})


@pytest.fixture(scope="module")
def caller():
    with Worker() as running:
        client = running.client()
        make(client)
        yield client


def ask(client, do, **event):
    answer, error = invoke(client, "caller", {"do": do, **event})
    assert error is None, answer
    return answer


def test_function_calls_another_of_its_worker(caller):
    payload = json.dumps({"x": 1})
    status, answer = ask(caller, "call", name="called", arguments={"Payload": payload})
    assert (status, json.loads(answer)) == (200, {"echo": {"x": 1}})
    assert ask(caller, "call", name="called:$LATEST", arguments={"InvocationType": "Event"})[0] == 202
    assert json.loads(ask(caller, "stream", name="called")) == {"echo": {}}
    absent = {"service": "lambda", "operation": "invoke", "arguments": {"FunctionName": "none"}}
    assert ask(caller, "refusal", **absent) == [404, "ResourceNotFoundException"]


def test_function_reaches_no_other_operation_or_service(caller):
    denied = [403, "AccessDeniedException"]
    for operation, arguments in [
        ("list_functions", {}),
        ("get_function", {"FunctionName": "called"}),
        ("delete_function", {"FunctionName": "called"}),
    ]:
        assert ask(caller, "refusal", service="lambda", operation=operation, arguments=arguments) == denied
    # At once, although this function reaches no network.
    begun = time.monotonic()
    assert ask(caller, "refusal", service="dynamodb", operation="list_tables")[0] == 403
    assert time.monotonic() - begun < 30
    assert invoke(caller, "called", {"x": 1})[1] is None


def test_functions_that_call_at_once_leave_the_runtime_its_connection(caller):
    app = """
import boto3, concurrent.futures
client = boto3.client("lambda")
def handler(event, context):
    call = lambda n: client.invoke(FunctionName="short", Payload=str(n))["Payload"].read().decode()
    with concurrent.futures.ThreadPoolExecutor(24) as threads:
        return list(threads.map(call, range(24)))
"""
    create(caller, "short", zipped(app_py="def handler(event, context): return event"))
    create(caller, "many", zipped(app_py=app), **LARGE)
    for _ in range(2):
        assert invoke(caller, "many") == ([str(number) for number in range(24)], None)


def test_functions_have_test_credentials_by_default(caller):
    found = ask(caller, "environment")
    assert [found[name] for name in OWN] == ["test", "test", "test", "us-east-1", "us-east-1"]
    assert found["AWS_ENDPOINT_URL_LAMBDA"] == found["AWS_ENDPOINT_URL"] == HERE_INSIDE


def test_endpoints_of_the_function_itself_are_kept(caller):
    own = {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_LAMBDA": "http://b"}
    create(caller, "own", zipped(app_py=APP), Environment={"Variables": own}, **LARGE)
    found = invoke(caller, "own", {"do": "environment"})[0]
    assert {name: found[name] for name in own} == own


def test_key_of_the_template_comes_without_the_workers_secret(tmp_path_factory):
    folder = open_folder(tmp_path_factory, "own-key")
    template = folder / "template.yaml"
    (folder / "app.py").write_text(APP)
    template.write_text("""
Transform: AWS::Serverless-2016-10-31
Metadata: {Mayfly: {NearestRuntime: true}}
Resources:
  A:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: caller
      Runtime: python3.11
      Handler: app.handler
      CodeUri: .
      Timeout: 60
      Environment: {Variables: {AWS_ACCESS_KEY_ID: own, AWS_SECRET_ACCESS_KEY: mine}}
""")
    with Worker(str(template)) as running:
        found = ask(running.client(), "environment")
    assert [found.get(name) for name in OWN[:3]] == ["own", "mine", None]


def test_calls_of_functions_need_the_key_where_one_is_set():
    wanted = {"service": "lambda", "operation": "invoke", "arguments": {"FunctionName": "called"}}
    with Worker(environment=KEY) as running:
        client = running.client(*KEY.values())
        make(client)
        assert ask(client, "refusal", **wanted) == [403, "UnrecognizedClientException"]
    own = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "secret"}
    with Worker("--credentials", "env", environment={**KEY, **own, "AWS_SESSION_TOKEN": ""}) as running:
        client = running.client(*KEY.values())
        make(client)
        assert ask(client, "call", name="called")[0] == 200
        wanted = {**wanted, "operation": "delete_function"}
        assert ask(client, "refusal", **wanted) == [403, "AccessDeniedException"]


CREDENTIALS = """
# Comments stand on lines of their own.
[default]
aws_access_key_id = AKIADEFAULT
aws_secret_access_key = a/b+c=d

[two words]
aws_access_key_id=AKIATWO
aws_secret_access_key: two
aws_session_token = token
"""
CONFIG = """
[default]
region = eu-west-1
aws_access_key_id = unused
s3 =
    max_concurrent_requests = 20

[profile "two words"]
region = ap-southeast-2

[profile logs-in]
sso_session = mine
region = eu-west-1
"""


def files(folder):
    (folder / "credentials").write_text(CREDENTIALS)
    (folder / "config").write_text(CONFIG)
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
    }


@pytest.mark.parametrize("profile", ["default", "two words"])
def test_profiles_are_read_as_by_botocore(profile, tmp_path, monkeypatch):
    environment = files(tmp_path)
    for name in [*OWN, "AWS_PROFILE", "AWS_DEFAULT_PROFILE"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    session = botocore.session.Session(profile=profile)
    wanted = session.get_credentials().get_frozen_credentials()
    with Worker("--credentials", f"profile:{profile}") as running:
        client = running.client()
        make(client)
        found = ask(client, "environment")
        zone = ask(client, "metadata", path=PATH, headers=BEARER)[1]
    assert tuple(found.get(name) for name in OWN[:3]) == (wanted.access_key, wanted.secret_key, wanted.token)
    assert found["AWS_REGION"] == session.get_config_variable("region")
    assert zone == {"AvailabilityZoneID": {"default": "euw1-az1", "two words": "apse2-az1"}[profile]}


@pytest.mark.parametrize(
    "source, reason",
    [
        ("profile:logs-in", "SSO (sso_session)"),
        ("profile:none", "has a profile none"),
        ("env", "AWS_ACCESS_KEY_ID is not set"),
        ("other", "test, env, profile or profile:NAME"),
    ],
)
def test_credentials_that_cannot_be_had_end_the_start(source, reason, tmp_path, monkeypatch):
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in files(tmp_path).items():
        monkeypatch.setenv(name, value)
    ended = subprocess.run(
        [MAYFLY, "up", "--listen", "127.0.0.1:0", "--credentials", source], capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert [reason in line for line in ended.stderr.splitlines()].count(True) == 1, ended.stderr


def test_metadata_needs_the_token_of_the_instance(caller):
    answer = ask(caller, "metadata", path=PATH, headers=BEARER)
    wanted = [{"AvailabilityZoneID": "use1-az1"}, "application/json", "private, max-age=43200, immutable"]
    assert answer == [200, *wanted]
    for headers in ({}, {"Authorization": "TOKEN"}, {"Authorization": "Bearer TOKENx"}):
        assert ask(caller, "metadata", path=PATH, headers=headers) == [401]
    assert ask(caller, "metadata", path=PATH, headers=BEARER, method="POST") == [405]
    assert ask(caller, "metadata", path=PATH + "/x", headers=BEARER) == [404]
    tokens = {
        invoke(caller, name, {"do": "environment"})[0]["AWS_LAMBDA_METADATA_TOKEN"]
        for name in ("caller", "called")
    }
    assert len(tokens) == 2


def test_powertools_finds_the_availability_zone():
    with Worker(str(HERE / "functions/metadata/template.yaml")) as running:
        assert invoke(running.client(), "metadata") == ("use1-az1", None)
