"""Web frameworks behind events of HTTP: one application in FastAPI, Flask, Express and Fastify, through the
adapters that their users take, behind a REST API, an HTTP API and a function URL."""

import json
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest
from api_calls import call
from calls import PYTHON, open_folder
from conftest import HERE, Worker
from test_runtimes import needs_npm

NODE = "nodejs24.x"  # which the worker installs where the host has another one
RUNTIMES = {"FastApi": PYTHON, "Flask": PYTHON, "Express": NODE, "Fastify": NODE}
BINARY = "application/octet-stream"


def code_of(name, place):
    """A copy of an application, with its packages where it is in Node.js: for Python the worker has them."""
    folder = shutil.copytree(HERE / "frameworks" / name.lower(), place / name)
    if RUNTIMES[name] == NODE:
        if not shutil.which("npm"):
            pytest.skip("this host lacks npm")
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--engine-strict=false"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            pytest.skip("npm's registry takes more than ten minutes for the packages")
        if any(code in done.stderr for code in ("ENOTFOUND", "ETIMEDOUT", "ECONNRE", "EAI_AGAIN")):
            pytest.skip(f"npm's registry cannot be reached: {done.stderr.strip().splitlines()[0]}")
        assert done.returncode == 0, done.stderr
    return str(folder)


@pytest.fixture(scope="module", params=RUNTIMES)
def application(request, tmp_path_factory):
    """A worker that serves one of them, and its name."""
    name, place = request.param, open_folder(tmp_path_factory, request.param.lower())
    needs_npm()
    events = {
        "Rest": {
            "Type": "Api",
            "Properties": {"Path": "/{proxy+}", "Method": "ANY", "RestApiId": {"Ref": "Rest"}},
        },
        "Http": {"Type": "HttpApi", "Properties": {"ApiId": {"Ref": "Http"}}},
    }
    properties = {
        "Runtime": RUNTIMES[name],
        "CodeUri": code_of(name, place),
        "Handler": "app.handler",
        "MemorySize": 512,
        "Timeout": 60,
        "FunctionUrlConfig": {"AuthType": "NONE"},
        "Events": events,
    }
    rest = {"StageName": "live", "BinaryMediaTypes": [BINARY]}
    resources = {
        name: {"Type": "AWS::Serverless::Function", "Properties": properties},
        "Rest": {"Type": "AWS::Serverless::Api", "Properties": rest},
        "Http": {"Type": "AWS::Serverless::HttpApi"},
    }
    (place / "template.yaml").write_text(json.dumps({"Resources": resources}))
    with Worker(str(place / "template.yaml")) as running:
        yield running, name


@pytest.fixture(params=["rest", "http", "url"])
def asked(request, application):
    """Asks the application at one of its three addresses, whose name it returns, too."""
    running, name = application
    if request.param == "url":
        url = running.client().get_function_url_config(FunctionName=name)["FunctionUrl"]
        host, root = f"{urlsplit(url).path.split('/')[2]}.lambda-url.localhost:{running.port}", ""
    else:
        root = "/live" if request.param == "rest" else ""
        host = f"{request.param}.execute-api.localhost:{running.port}"

    def ask(path, **arguments):
        return call(running, host, root + path, **arguments)

    return ask, host, name


def test_path_query_and_cookie(asked):
    ask, host, _ = asked
    answer = ask("/pets/a%20b?tag=x&tag=%C3%A9", headers={"Cookie": "seen=yes"})
    assert answer.status == 200, answer.body
    found = answer.json()
    url = urlsplit(found.pop("url"))
    assert found == {"name": "a b", "tags": ["x", "é"], "seen": "yes"}
    assert url.netloc == host


def test_body_status_and_cookies(asked):
    ask, *_ = asked
    headers = {"Content-Type": "application/json"}
    answer = ask("/pets", method="POST", headers=headers, body='{"name": "é", "age": 3}'.encode())
    assert (answer.status, answer.json()) == (201, {"name": "é", "age": 3}), answer.body
    cookies = answer.headers.get_all("set-cookie")
    assert [cookie.split(";")[0] for cookie in cookies] == ["first=1", "second=2"]
    refused = ask("/pets", method="POST", headers=headers, body=b"{}")
    assert refused.status == 422, refused.body


def test_binary_answer(asked):
    ask, *_ = asked
    answer = ask("/bytes", headers={"Accept": BINARY})
    assert (answer.status, answer.body) == (200, bytes(range(256)))
    assert answer.headers["content-type"].startswith(BINARY)


def test_redirect_leads_back(asked):
    """To the same name; a REST API's stage is the application's to know, as on AWS."""
    ask, host, _ = asked
    answer = ask("/old")
    to = urlsplit(answer.headers["location"])
    assert (answer.status, to.netloc) == (307, host), answer.headers["location"]
    assert ask("/pets/" + to.path.rpartition("/")[2]).json()["name"] == "moved"


def test_unknown_path(asked):
    ask, *_ = asked
    assert ask("/none/such").status == 404
