"""Web servers behind AWS' Lambda Web Adapter: an extension of a layer that turns invocations into requests to
the server, so that the function's code knows nothing of Lambda."""

import json
import os
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest
from api_calls import call
from calls import PYTHON, open_folder, programs
from conftest import HERE, Worker

VERSION = "1.0.0-rc1"
# The layer's wrapper: it starts the handler, a script, in place of the runtime.
WRAPPER = '#!/bin/bash\nexec -- "${LAMBDA_TASK_ROOT}/${_HANDLER}"\n'
START = '#!/bin/sh\nexec /usr/bin/python3 "$(dirname "$0")/server.py"\n'
SERVER = """
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        about = json.loads(self.headers.get("x-amzn-lambda-context") or "{}")
        seen = {"path": self.path, "method": self.command, "host": self.headers["Host"],
                "text": self.rfile.read(length).decode(), "id": about.get("request_id"), "pid": os.getpid()}
        body = bytes(range(256)) if self.path.endswith("/bytes") else json.dumps(seen).encode()
        self.send_response(404 if "/none" in self.path else 200)
        self.send_header("Content-Type", "image/png" if self.path.endswith("/bytes") else "application/json")
        self.send_header("Set-Cookie", "first=1")
        self.send_header("Set-Cookie", "second=2")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Echo).serve_forever()
"""


@pytest.fixture(scope="module")
def adapter():
    """The adapter's program, which stays in build/."""
    root = HERE / "build/web-adapter"
    if not (root / "bin/lambda-adapter").exists():
        if not os.environ.get("MAYFLY_SOAK"):
            pytest.skip("compiling the adapter takes two minutes of processor time: set MAYFLY_SOAK")
        if not shutil.which("cargo"):
            pytest.skip("this host has no cargo")
        words = ["cargo", "install", "--locked", "--debug", "--root", root, f"lambda_web_adapter@{VERSION}"]
        environment = {
            **os.environ,
            "CARGO_TARGET_DIR": str(HERE / "build/cargo"),
            "CARGO_PROFILE_DEV_STRIP": "true",
        }
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode and ("failed to download" in done.stderr or "could not find `" in done.stderr):
            pytest.skip(f"the adapter cannot be had: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    return (root / "bin/lambda-adapter").read_bytes()


@pytest.fixture(scope="module")
def running(adapter, tmp_path_factory):
    place = open_folder(tmp_path_factory, "adapter")
    (place / "layer.zip").write_bytes(programs({"extensions/lambda-adapter": adapter, "bootstrap": WRAPPER}))
    (place / "wrapped.zip").write_bytes(programs({"run.sh": START}, {"server.py": SERVER}))
    (place / "provided.zip").write_bytes(programs({"bootstrap": START}, {"server.py": SERVER}))
    wrapped = {
        "Runtime": PYTHON,
        "CodeUri": "wrapped.zip",
        "Handler": "run.sh",
        "Environment": {"Variables": {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/bootstrap", "PORT": "8000"}},
    }
    provided = {
        "Runtime": "provided.al2023",
        "CodeUri": "provided.zip",
        "Handler": "bootstrap",
        "Environment": {"Variables": {"PORT": "8000"}},
    }
    streaming = {
        **provided,
        "Environment": {"Variables": {"PORT": "8000", "AWS_LWA_INVOKE_MODE": "response_stream"}},
    }
    common = {"Layers": [{"Ref": "Adapter"}], "MemorySize": 256, "Timeout": 60}
    resources = {
        "Adapter": {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "layer.zip"}}
    }
    for name, properties in {"Wrapped": wrapped, "Provided": provided, "Streaming": streaming}.items():
        streams = name == "Streaming"
        url = {"AuthType": "NONE", "InvokeMode": "RESPONSE_STREAM" if streams else "BUFFERED"}
        api = {"Http": {"Type": "HttpApi", "Properties": {"Path": f"/{name}/{{proxy+}}", "Method": "ANY"}}}
        properties = {**common, **properties, "FunctionUrlConfig": url, "Events": {} if streams else api}
        resources[name] = {"Type": "AWS::Serverless::Function", "Properties": properties}
    (place / "template.yaml").write_text(json.dumps({"Resources": resources}))
    with Worker(str(place / "template.yaml")) as running:
        yield running


@pytest.mark.parametrize("name", ["Wrapped", "Provided", "Streaming"])
def test_function_url(running, name):
    url = running.client().get_function_url_config(FunctionName=name)["FunctionUrl"]
    host = f"{urlsplit(url).path.split('/')[2]}.lambda-url.localhost:{running.port}"
    first = call(running, host, "/a%20b?c=d&c=e")
    assert first.status == 200, first.body
    found = first.json()
    assert (found["path"], found["method"], found["host"]) == ("/a%20b?c=d&c=e", "GET", host)
    assert [one.split(";")[0] for one in first.headers.get_all("set-cookie")] == ["first=1", "second=2"]
    posted = call(running, host, "/x", method="POST", body="é".encode()).json()
    assert (posted["text"], posted["pid"]) == ("é", found["pid"])
    assert posted["id"] and posted["id"] != found["id"]
    assert call(running, host, "/none").status == 404
    assert call(running, host, "/bytes").body == bytes(range(256))


@pytest.mark.parametrize("name", ["Wrapped", "Provided"])
def test_http_api(running, name):
    answer = call(running, "serverlesshttpapi", f"/{name}/a%20b?c=d", method="POST", body="é".encode())
    assert answer.status == 200, answer.body
    found = answer.json()
    assert (found["path"], found["method"], found["text"]) == (f"/{name}/a%20b?c=d", "POST", "é")
    assert call(running, "serverlesshttpapi", f"/{name}/none").status == 404
    assert call(running, "serverlesshttpapi", f"/{name}/bytes").body == bytes(range(256))
