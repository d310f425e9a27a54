"""Functions as users write them: AWS' own examples, unchanged, and one of ours for each ecosystem, built by
SAM CLI, called by boto3, the AWS CLI and HTTP."""

import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import samcli.lib.init
from calls import PYTHON, invoke, provider, serves_several
from conftest import HERE, ROOT, Worker
from test_nodejs import RUNTIME, version

TOOLS = pathlib.Path(sys.executable).parent
TEMPLATES = pathlib.Path(samcli.lib.init.__file__).parent / "templates"
BUILD = HERE / "build"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{TOOLS}:{os.environ['PATH']}",
    "SAM_CLI_TELEMETRY": "0",
    "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "auto"),  # Debian's Go does not fetch the version asked for
    # Keeps compiled code for the next run.
    "CARGO_TARGET_DIR": str(BUILD / "cargo"),
}
missing = [name for name in ("go", "cargo", "npm") if not shutil.which(name)]
has_node = version() == "20" and "npm" not in missing
needs_node = pytest.mark.skipif(not has_node, reason="this host has no Node.js 20 with npm")


def sam(*arguments, cwd):
    done = subprocess.run(
        ["sam", *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return cwd / ".aws-sam/build/template.yaml"


def aws(running, *arguments, text=None):
    """The AWS CLI, as users call it."""
    done = subprocess.run(
        ["aws", "--endpoint-url", running.url, "--region", "us-east-1", *arguments],
        env={**ENVIRONMENT, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_PAGER": ""},
        capture_output=True,
        text=True,
        input=text,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(folder, language, runtime):
    """One of SAM CLI's own example projects, built."""
    sam(
        *("init", "--no-input", "--location", TEMPLATES / f"cookiecutter-aws-sam-hello-{language}"),
        *("--name", "hello", "--extra-context"),
        json.dumps({"project_name": "hello", "runtime": runtime, "architectures": {"value": ["x86_64"]}}),
        cwd=folder,
    )
    return sam("build", cwd=folder / "hello")


@pytest.mark.parametrize(
    "language, runtime", [("python", PYTHON), pytest.param("nodejs", RUNTIME, marks=needs_node)]
)
def test_aws_example_built_by_sam_cli(tmp_path, language, runtime):
    with Worker(str(example(tmp_path, language, runtime))) as running:
        event = json.loads((tmp_path / "hello/events/event.json").read_text())
        answer, error = invoke(running.client(), "HelloWorldFunction", event)
        assert error is None, answer
        assert (answer["statusCode"], json.loads(answer["body"])) == (200, {"message": "hello world"})
        out = tmp_path / "answer.json"
        report = json.loads(
            aws(
                running,
                *("lambda", "invoke", "--function-name", "HelloWorldFunction", "--log-type", "Tail"),
                *("--payload", json.dumps(event), out),
            )
        )
        assert (
            report["StatusCode"] == 200
            and "REPORT RequestId" in base64.b64decode(report["LogResult"]).decode()
        )
        assert json.loads(out.read_text()) == answer


def test_aws_cli_creates_invokes_and_deletes_a_function(tmp_path):
    (tmp_path / "app.py").write_text("def handler(event, context): return [event, context.function_version]")
    shutil.make_archive(str(tmp_path / "code"), "zip", tmp_path, "app.py")
    out = tmp_path / "answer.json"
    with Worker() as running:
        made = aws(
            running,
            *("lambda", "create-function", "--function-name", "made", "--runtime", PYTHON),
            *("--handler", "app.handler", "--role", "arn:aws:iam::000000000000:role/r"),
            *("--zip-file", f"fileb://{tmp_path}/code.zip", "--publish"),
        )
        assert json.loads(made)["Version"] == "1"
        aws(running, "lambda", "wait", "function-active-v2", "--function-name", "made")
        aws(running, "lambda", "invoke", "--function-name", "made", "--qualifier", "1", out)
        assert json.loads(out.read_text()) == [{}, "1"]
        assert "made" in aws(running, "lambda", "list-functions", "--output", "text")
        assert "REPORT RequestId" in aws(
            running, "logs", "filter-log-events", "--log-group-name", "/aws/lambda/made", "--output", "text"
        )
        aws(running, "lambda", "delete-function", "--function-name", "made")
        assert json.loads(aws(running, "lambda", "list-functions"))["Functions"] == []


@pytest.fixture(scope="module")
def ecosystems():
    """Our own functions, built by `sam build`."""
    if missing or version() != "20":
        pytest.skip(f"this host lacks {' '.join(missing) or 'Node.js 20'}")
    folder = BUILD / "ecosystems"
    folder.mkdir(parents=True, exist_ok=True)
    given = ["--parameter-overrides", f"Python={PYTHON}"]
    template = sam("build", "--cached", "--template", ROOT / "functions/ecosystems.yaml", *given, cwd=folder)
    with Worker(str(template), *given) as running:
        yield running


def test_python_with_powertools(ecosystems):
    client = ecosystems.client()
    url = client.get_function_url_config(FunctionName="orders")["FunctionUrl"]
    with urllib.request.urlopen(url + "prices") as answer:
        assert json.load(answer) == {"tea": 250, "cake": 390}
    order = urllib.request.Request(url + "orders", json.dumps({"tea": 2, "cake": 1}).encode(), method="POST")
    with urllib.request.urlopen(order) as answer:
        assert json.load(answer) == {"total_cents": 890}
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url + "orders", b'{"coffee": 1}', method="POST"))
    assert caught.value.code == 400 and b"there is no coffee" in caught.value.read()
    logged = ecosystems.client(service="logs").filter_log_events(logGroupName="/aws/lambda/orders")["events"]
    lines = [json.loads(event["message"]) for event in logged if event["message"].startswith("{")]
    (ordered,) = [line for line in lines if line.get("message") == "ordered"]
    assert (ordered["total_cents"], ordered["function_name"], ordered["cold_start"]) == (890, "orders", False)
    assert re.fullmatch(r"[0-9a-f-]{36}", ordered["function_request_id"])
    (metric,) = [line for line in lines if "Orders" in line]
    assert metric["Orders"] == [1.0] and metric["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Shop"


def test_nodejs_with_npm_packages(ecosystems):
    answer, error = invoke(ecosystems.client(), "markdown", {"text": "# A *title*"})
    assert (error, answer) == (None, {"html": "<h1>A <em>title</em></h1>\n"})
    log = ecosystems.client(service="logs").filter_log_events(logGroupName="/aws/lambda/markdown")["events"]
    (line,) = [event["message"] for event in log if '"parsed"' in event["message"]]
    line = json.loads(line[line.index("{") :])
    assert (line["characters"], line["function_name"], line["service"]) == (11, "markdown", "markdown")


@pytest.mark.parametrize(
    "name, event, expected, wrong, reason",
    [
        ("primes", {"below": 100_000}, {"primes": 9592}, {"below": 10**9}, "is more than"),
        ("words", {"text": "b a b", "most": 1}, {"words": ["b"]}, {"text": "", "most": 0}, "at least 1"),
    ],
)
def test_rust_and_go(ecosystems, name, event, expected, wrong, reason):
    client = ecosystems.client()
    answer = client.invoke(FunctionName=name, Payload=json.dumps(event))
    request = answer["ResponseMetadata"]["RequestId"]
    assert json.loads(answer["Payload"].read()) == {**expected, "request": request}
    answer, error = invoke(client, name, wrong)
    assert error == "Unhandled" and reason in answer["errorMessage"]
    assert invoke(client, name, event)[1] is None, "the instance survives"


@pytest.mark.parametrize(
    "name, event, expected",
    [
        ("primes", {"below": 200_000}, {"primes": 17_984}),
        ("words", {"text": "b a b " * 20_000, "most": 1}, {"words": ["b"]}),
    ],
)
def test_rust_and_go_serve_several_requests_in_one_process(ecosystems, name, event, expected):
    client = ecosystems.client()
    client.update_function_configuration(FunctionName=name, CapacityProviderConfig=provider(4))
    serves_several(ecosystems, name, event, expected)
    client.delete_function_concurrency(FunctionName=name)
